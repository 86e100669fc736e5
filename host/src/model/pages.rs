//! The pages of a batch's cache: who has which, what they hold, and how many are left.
//!
//! A page has one owner, which gives it back. One that is full of known tokens is remembered by them and by the page in front of it, so that a
//! sequence that begins with the same tokens copies it instead of computing its keys again: they would be the same bits. It stays when its
//! owner has gone: such a sequence takes it as it is, or else it makes room when a page is wanted and none is empty; what was used longest ago goes first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use contract::attention_paged::PAGE;

/// Pages in use, in total and at most so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PageUsage {
    /// Pages that sequences have.
    pub in_use: usize,
    /// The most that they had at once.
    pub peak: usize,
    /// Pages that there are.
    pub total: usize,
}

/// What a page holds.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Text {
    /// The name of the text in front of it; 0 for none. Names are not used twice, so that what followed a forgotten text is not found.
    behind: u64,
    /// [`PAGE`] of them.
    tokens: Box<[u32]>,
}

/// One page.
#[derive(Debug, Default)]
struct Page {
    /// When it was used last; of a page that has an owner, any.
    since: u64,
    /// What it is remembered by: a name, and what it holds.
    text: Option<(u64, Arc<Text>)>,
}

/// Pages by number.
#[derive(Debug)]
pub(crate) struct PagePool {
    pages: Vec<Page>,
    /// Pages that nobody has and that hold nothing; the last one is given away next.
    free: Vec<u32>,
    /// Pages that nobody has and that are remembered, by [`Page::since`].
    idle: BTreeMap<u64, u32>,
    texts: HashMap<Arc<Text>, u32>,
    /// Counts names and moments.
    count: u64,
    peak: usize,
}

impl PagePool {
    /// All of `total` pages free.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            pages: (0..total).map(|_| Page::default()).collect(),
            // The lowest first, so that a short batch stays in few pages of memory.
            free: (0..total as u32).rev().collect(),
            idle: BTreeMap::new(),
            texts: HashMap::new(),
            count: 0,
            peak: 0,
        }
    }

    pub(crate) fn usage(&self) -> PageUsage {
        PageUsage { in_use: self.in_use(), peak: self.peak, total: self.pages.len() }
    }

    fn in_use(&self) -> usize {
        self.pages.len() - self.left()
    }

    fn next_count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// `count` pages for a sequence that begins with `tokens`; `None`, and none taken, when there are fewer. Those that hold this beginning, and that nobody
    /// has, stand where it wants them and are remembered still; the others hold nothing.
    pub(crate) fn take(&mut self, tokens: &[u32], count: usize) -> Option<Vec<u32>> {
        // What it can copy counts as used as well, so that it is not the first to make room.
        let found = self.find(tokens);
        if count > self.left() {
            return None;
        }
        let idle = &mut self.idle;
        let mut adopt =
            |page: u32| idle.remove(&self.pages[page as usize].since).is_some().then_some(page);
        let adopted: Vec<Option<u32>> =
            found.into_iter().map(&mut adopt).chain(std::iter::repeat(None)).take(count).collect();
        let taken = adopted.into_iter().map(|page| page.or_else(|| self.empty()));
        let taken = taken.collect::<Option<_>>();
        self.peak = self.peak.max(self.in_use());
        taken
    }

    /// A page that holds nothing, if it is only because what it held is forgotten.
    fn empty(&mut self) -> Option<u32> {
        let oldest = || self.idle.pop_first().map(|(_, page)| page);
        let page = self.free.pop().or_else(oldest)?;
        if let Some((_, text)) = self.pages[page as usize].text.take() {
            self.texts.remove(&text);
        }
        Some(page)
    }

    /// Pages that nobody has.
    pub(crate) fn left(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// The pages that hold the beginning of `tokens`, as many as there are, whoever has them.
    pub(crate) fn beginning(&self, tokens: &[u32]) -> Vec<u32> {
        let (mut found, mut behind) = (Vec::new(), 0);
        for tokens in tokens.chunks_exact(PAGE) {
            let Some(&page) = self.texts.get(&Text { behind, tokens: tokens.into() }) else {
                break;
            };
            behind = self.pages[page as usize].text.as_ref().map_or(0, |(name, _)| *name);
            found.push(page);
        }
        found
    }

    /// [`Self::beginning`], which counts as used.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Vec<u32> {
        let found = self.beginning(tokens);
        // Of one text the end is forgotten first.
        for &page in found.iter().rev() {
            if self.idle.remove(&self.pages[page as usize].since).is_some() {
                self.rests(page);
            }
        }
        found
    }

    /// A page that is remembered, and that nobody has, was used now.
    fn rests(&mut self, page: u32) {
        let since = self.next_count();
        self.pages[page as usize].since = since;
        self.idle.insert(since, page);
    }

    /// Remembers that the first of `pages` hold `tokens`, as far as these fill them. What is remembered of other pages already stays with those.
    pub(crate) fn remember(&mut self, pages: &[u32], tokens: &[u32]) {
        let mut behind = 0;
        for (&page, tokens) in pages.iter().zip(tokens.chunks_exact(PAGE)) {
            let text = Text { behind, tokens: tokens.into() };
            let at = self.texts.get(&text).map(|&at| &self.pages[at as usize]);
            if let Some((name, _)) = at.and_then(|at| at.text.as_ref()) {
                behind = *name;
                continue;
            }
            behind = self.next_count();
            let text = Arc::new(text);
            // It may be known behind a text that was forgotten since.
            let of_page = &mut self.pages[page as usize];
            if let Some((_, old)) = of_page.text.replace((behind, Arc::clone(&text))) {
                self.texts.remove(&old);
            }
            self.texts.insert(text, page);
        }
    }

    /// Takes back what [`PagePool::take`] gave.
    pub(crate) fn give_back(&mut self, pages: Vec<u32>) {
        for page in pages.into_iter().rev() {
            match self.pages[page as usize].text {
                Some(_) => self.rests(page),
                None => self.free.push(page),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_once_and_come_back() {
        let mut pool = PagePool::new(5);
        let a = pool.take(&[], 2).expect("two of five");
        let b = pool.take(&[], 3).expect("three of three");
        let mut all = [&a[..], &b[..]].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert_eq!(pool.take(&[], 1), None);
        pool.give_back(b);
        assert_eq!(pool.take(&[], 4), None, "nothing is taken when it is not enough");
        assert_eq!(pool.usage(), PageUsage { in_use: 2, peak: 5, total: 5 });
        assert_eq!(pool.take(&[], 3).map(|pages| pages.len()), Some(3));
        assert_eq!(pool.take(&[], 0), Some(vec![]));
        pool.give_back(a);
        assert_eq!(pool.usage().in_use, 3);
    }

    fn text(seed: u32, pages: usize) -> Vec<u32> {
        (0..(pages * PAGE) as u32).map(|i| seed + i * i % 97).collect()
    }

    #[test]
    fn what_a_page_holds_is_found_again() {
        let mut pool = PagePool::new(6);
        let tokens = text(1, 3);
        let first = pool.take(&[], 4).expect("four of six");
        pool.remember(&first, &tokens[..PAGE + 5]);
        assert_eq!(pool.find(&tokens[..2 * PAGE]), &first[..1], "the rest has not run");
        pool.remember(&first, &tokens);
        assert_eq!(pool.find(&tokens[..3 * PAGE - 1]), &first[..2], "whole pages only");
        // The same tokens behind others are another text.
        assert!(pool.find(&[&text(7, 1), &tokens[PAGE..]].concat()).is_empty());
        pool.give_back(first.clone());
        assert_eq!(pool.usage(), PageUsage { in_use: 0, peak: 4, total: 6 });
        let found = pool.find(&[&tokens[..], &[5; PAGE]].concat());
        assert_eq!((&found[..], pool.usage().in_use), (&first[..3], 0), "and behind its owner");
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let mut pool = PagePool::new(5);
        let (old, new) = (text(1, 2), text(1000, 2));
        for tokens in [&old, &new] {
            let pages = pool.take(&[], 2).expect("empty ones");
            pool.remember(&pages, tokens);
            pool.give_back(pages);
        }
        // The empty one, then the end of the older text.
        let two = pool.take(&[], 2).expect("two");
        assert_eq!(pool.find(&old).len(), 1);
        // That was asked for since: both of the other go.
        let others = pool.take(&[], 2).expect("the other's");
        assert!(pool.find(&new).is_empty());
        assert_eq!(pool.find(&old).len(), 1);
        let last = pool.take(&[], 1).expect("the last");
        assert_eq!(pool.take(&[], 1), None);
        assert!(pool.find(&old).is_empty() && pool.texts.is_empty() && pool.idle.is_empty());
        pool.give_back([two, others, last].concat());
        assert_eq!((pool.usage().in_use, pool.free.len()), (0, 5), "nothing is remembered of them");
    }

    #[test]
    fn who_begins_alike_takes_what_nobody_has() {
        let mut pool = PagePool::new(5);
        let tokens = text(3, 3);
        let first = pool.take(&[], 3).expect("three of five");
        pool.remember(&first, &tokens);
        // Its owner is there: others copy.
        let second = pool.take(&tokens, 2).expect("two");
        assert!(second.iter().all(|page| !first.contains(page)));
        assert_eq!(pool.take(&tokens, 1), None);
        pool.give_back(second);
        pool.give_back(first.clone());
        // All pages, and nothing is forgotten that it begins with.
        let all = pool.take(&[&tokens[..2 * PAGE], &[7; PAGE]].concat(), 5).expect("all of them");
        assert_eq!((&all[..2], all.len()), (&first[..2], 5));
        assert_eq!(pool.usage(), PageUsage { in_use: 5, peak: 5, total: 5 });
        assert_eq!(pool.beginning(&tokens), &first[..2], "its third page was wanted");
        pool.give_back(all);
        // A page in the middle that somebody has is copied, those around it are taken.
        let one = pool.take(&tokens[..PAGE], 1).expect("the first");
        assert_eq!(one, &first[..1]);
        let two = pool.take(&tokens, 2).expect("two");
        assert_eq!((two[0] == first[0], two[1]), (false, first[1]));
        pool.give_back(two);
        pool.give_back(one);
        assert_eq!(pool.beginning(&tokens), &first[..2]);
        assert_eq!(pool.usage().in_use, 0);
    }

    #[test]
    fn two_that_computed_the_same_are_remembered_once() {
        let mut pool = PagePool::new(4);
        let tokens = text(3, 2);
        let [a, b] = [(); 2].map(|()| pool.take(&[], 2).expect("two"));
        pool.remember(&a, &tokens[..PAGE]);
        pool.remember(&b, &tokens);
        assert_eq!(
            pool.find(&tokens),
            [a[0], b[1]],
            "the second page is behind the text of the first"
        );
        pool.give_back(a.clone());
        // Both pages of the first go: one held nothing, one is forgotten, and what stood behind it with it.
        let others = pool.take(&[], 2).expect("two");
        assert!(pool.find(&tokens).is_empty());
        // Its owner has it still, and behind the text that is its own now.
        pool.remember(&b, &tokens);
        assert_eq!(pool.find(&tokens), b);
        for pages in [b, others] {
            pool.give_back(pages);
        }
        pool.take(&[], 4).expect("all of them");
        assert!(pool.texts.is_empty() && pool.idle.is_empty());
    }
}
