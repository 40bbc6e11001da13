// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// Room is how many members there is room for. Half of it is for selectors and their prefixes, as
// each prefix may be a member, and half for label sets and nodes.
type Room int

func roomOf(c bpf.Config) Room { return Room(c.MapSizePeers) }

// cost is what selectors cost, beside what they select.
type cost struct {
	objects int // the selectors, and their prefixes

	// pairs are of a prefix in use and one around it, or itself, that a selector names: the
	// selectors that select a prefix are listed with it, with its member and its class.
	pairs int
}

func (a cost) plus(b cost) cost { return cost{a.objects + b.objects, a.pairs + b.pairs} }

// use is what all selectors in use cost.
type use struct {
	prefixes []netip.Prefix       // each once and in order
	names    map[netip.Prefix]int // how many selectors name it
	namesOf  map[named]int        // of those, of a namespace
	lengths  [129]bool            // which occur
	total    cost
	of       map[string]cost // of the selectors of a namespace
}

type named struct {
	namespace string
	prefix    netip.Prefix
}

// inUse returns what all selectors in use cost but one, which may be nil.
func (c *round) inUse(but *tables.Selector) *use {
	if c.used != nil && but == nil {
		return c.used
	}
	u := &use{
		names: map[netip.Prefix]int{}, namesOf: map[named]int{}, of: map[string]cost{},
	}
	var all []*tables.Selector
	for s := range c.Selectors.All(c.out) {
		if but == nil || s.Number != but.Number {
			all = append(all, s)
			u.prefixes = append(u.prefixes, u.name(s)...)
		}
	}
	slices.SortFunc(u.prefixes, netip.Prefix.Compare)
	for _, s := range all {
		u.add(s.Namespace, u.costOf(s))
	}
	if but == nil {
		c.used = u
	}
	return u
}

// name notes what prefixes a selector names, and returns those that none named before.
func (u *use) name(s *tables.Selector) (came []netip.Prefix) {
	for _, p := range s.Prefixes() {
		u.namesOf[named{s.Namespace, p}]++
		if u.names[p]++; u.names[p] == 1 {
			came = append(came, p)
			u.lengths[p.Bits()] = true
		}
	}
	return came
}

func (u *use) add(namespace string, c cost) {
	u.total = u.total.plus(c)
	u.of[namespace] = u.of[namespace].plus(c)
}

// costOf returns what a selector costs whose prefixes are in use.
func (u *use) costOf(s *tables.Selector) cost {
	c := cost{objects: 1 + len(s.Prefixes())}
	for _, p := range s.Prefixes() {
		c.pairs += inside(u.prefixes, p)
	}
	return c
}

// inside returns how many of some prefixes, in order, are inside one.
func inside(prefixes []netip.Prefix, around netip.Prefix) int {
	at, _ := slices.BinarySearchFunc(prefixes, around, netip.Prefix.Compare)
	return sort.Search(len(prefixes)-at, func(i int) bool {
		return !around.Contains(prefixes[at+i].Addr())
	})
}

// more returns what selectors of a namespace would cost that come into use, and of how many more
// pairs the prefix around is of another namespace.
func (u *use) more(namespace string, came []*tables.Selector) (own cost, others int) {
	var prefixes []netip.Prefix
	for _, s := range came {
		prefixes = append(prefixes, s.Prefixes()...)
	}
	prefixes = slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return u.names[p] > 0 })
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	prefixes = slices.Compact(prefixes)
	for _, s := range came {
		own = own.plus(u.costOf(s))
		for _, p := range s.Prefixes() {
			own.pairs += inside(prefixes, p)
		}
	}
	for _, p := range prefixes {
		for bits := range p.Bits() {
			if u.lengths[bits] {
				around := netip.PrefixFrom(p.Addr(), bits).Masked()
				ofOwn := u.namesOf[named{namespace, around}]
				own.pairs += ofOwn
				others += u.names[around] - ofOwn
			}
		}
	}
	return own, others
}

// enter notes that a selector has come into use.
func (u *use) enter(s *tables.Selector) {
	own, others := u.more(s.Namespace, []*tables.Selector{s})
	u.add(s.Namespace, own)
	u.total.pairs += others
	if came := u.name(s); len(came) > 0 {
		u.prefixes = merge(u.prefixes, came)
	}
}

// merge returns the prefixes of two lists in order, in order.
func merge(a, b []netip.Prefix) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(a)+len(b))
	for _, p := range b {
		at, _ := slices.BinarySearchFunc(a, p, netip.Prefix.Compare)
		all = append(append(all, a[:at]...), p)
		a = a[at:]
	}
	return append(all, a...)
}

// noRoom says why some rules of a namespace are not enforced though they are not too large, empty
// if they are: they need selectors that are not in use, or one that has outgrown the room, and
// there is no room for these.
func (c *round) noRoom(namespace string, rules []said) (string, error) {
	var came []*tables.Selector
	seen := map[bpf.Digest]bool{}
	for _, r := range rules {
		for _, spec := range r.selectors {
			digest := spec.Digest()
			if seen[digest] {
				continue
			}
			seen[digest] = true
			if s, _, inUse := c.Selectors.Get(c.out, tables.SelectorByDigest(digest)); inUse {
				if s.NoRoom != "" {
					return s.NoRoom, nil
				}
				continue
			}
			s, err := c.resolve(c.in, tables.Selector{SelectorSpec: spec})
			if err != nil {
				return "", err
			}
			came = append(came, s)
		}
	}
	if len(came) == 0 {
		return "", nil
	}
	u := c.inUse(nil)
	own, others := u.more(namespace, came)
	return c.noRoomFor(namespace, u, own, others), nil
}

// noRoomFor says why more selectors of a namespace do not fit beside those in use, empty if they
// do. What others name around its prefixes does not count for the part that it is guaranteed.
func (c *round) noRoomFor(namespace string, u *use, own cost, others int) string {
	of := "of namespace " + namespace
	if namespace == "" {
		of = "of cluster-wide policies"
	}
	used := u.of[namespace]
	if !verdicts.Fits(int(c.Room)/2, u.total.objects, used.objects, own.objects) {
		return fmt.Sprintf("%d more selectors and prefixes, beside %d %s and %d of others: more than "+
			"--map-size-peers=%d has room for", own.objects, used.objects, of,
			u.total.objects-used.objects, c.Room)
	}
	if verdicts.Fits(c.Maps.Entries, u.total.pairs+others, used.pairs, own.pairs) {
		return ""
	}
	return fmt.Sprintf("too many prefixes inside of others: %d more pairs of a prefix and one around "+
		"it, beside %d %s and %d of others: more than --map-size-policy=%d has room for",
		own.pairs+others, used.pairs, of, u.total.pairs-used.pairs, c.Maps.Entries)
}

// outgrows says why there is no room for what a selector in use comes to by now, empty if there is.
func (c *round) outgrows(former, now *tables.Selector) string {
	u := c.inUse(former)
	before, aroundBefore := u.more(now.Namespace, []*tables.Selector{former})
	own, others := u.more(now.Namespace, []*tables.Selector{now})
	if own.objects <= before.objects && own.pairs+others <= before.pairs+aroundBefore {
		return ""
	}
	return c.noRoomFor(now.Namespace, u, own, others)
}

// enterUse writes a selector that comes into use, replaceUse another version of one, and leaveUse
// deletes one.
func (c *round) enterUse(s *tables.Selector) error {
	if c.used != nil {
		c.used.enter(s)
	}
	return derive.Insert(c.out, c.Selectors, s)
}

func (c *round) replaceUse(s *tables.Selector) error {
	c.used = nil
	return derive.Insert(c.out, c.Selectors, s)
}

func (c *round) leaveUse(s *tables.Selector) error {
	c.used = nil
	return derive.Delete(c.out, c.Selectors, s)
}
