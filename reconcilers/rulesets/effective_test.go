// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// The kernel's side, as the reconcilers would write it.

func (w *world) member(number, class uint32, made uint64) *tables.Member {
	return &tables.Member{
		Life:       life(number),
		Digest:     bpf.Digest{byte(number)},
		Class:      class,
		Made:       made,
		Reconciled: tables.Done(),
	}
}

func (w *world) address(p string, member uint32, made uint64) *tables.IPCache {
	return &tables.IPCache{Prefix: prefix(p), Member: member, Made: made, Reconciled: tables.Done()}
}

func (w *world) mirrorMember(m *tables.Member) *tables.PeerMirror {
	return &tables.PeerMirror{
		Key:     m.MapKey(),
		Value:   m.MapValue(),
		Present: true,
		Desired: true,
		Made:    m.Made,
	}
}

func (w *world) mirrorAddress(c *tables.IPCache) *tables.IPCacheMirror {
	return &tables.IPCacheMirror{
		Key:     c.MapKey(),
		Value:   c.MapValue(),
		Present: true,
		Desired: true,
		Made:    c.Made,
	}
}

func (w *world) selector(number uint32, blocks ...tables.Block) *tables.Selector {
	kind := tables.PeerEntity
	if len(blocks) > 0 {
		kind = tables.PeerCIDR
	}
	s, err := tables.NewSelector(tables.Selector{
		Life: life(number), Blocks: blocks,
		SelectorSpec: tables.SelectorSpec{
			Text:  number2text(number),
			Peers: []tables.PolicyPeer{{Kind: kind}},
		},
	})
	require.NoError(w.t, err)
	return s
}

func number2text(n uint32) string { return bpf.PeerKey{Member: n}.String() }

// effectiveWorld has selector 1 of labels and selector 2 of the prefix 10.1.0.0/16 without
// 10.1.2.0/24, evaluated by transaction 5, in ruleset 1 and 2; members and addresses that
// the kernel has as desired, made by transaction 3.
func effectiveWorld(t *testing.T) *world {
	w := newWorld(t, false)
	block := tables.Block{
		Prefix: prefix("10.1.0.0/16"), Except: []netip.Prefix{prefix("10.1.2.0/24")},
	}
	insert(w, w.selectors, w.selector(1), w.selector(2, block))
	for n := range uint32(2) {
		insert(w, w.matches, &tables.SelectorMatch{Selector: n + 1, Made: 5})
		insert(w, w.rulesets, &tables.Ruleset{
			Life: life(n + 1), Digest: bpf.Digest{byte(n)},
			Rules: []*tables.Rule{{Peers: []uint32{n + 1}}},
		})
	}
	for n := range uint32(3) {
		m := w.member(n+1, 1, 3)
		insert(w, w.Members.RWTable, m)
		insert(w, w.PeerMirror, w.mirrorMember(m))
	}
	for _, p := range []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.9.0.1/32"} {
		c := w.address(p, 1, 3)
		insert(w, w.IPCache.RWTable, c)
		insert(w, w.IPCacheMirror, w.mirrorAddress(c))
	}
	for _, p := range []string{"10.1.0.0/16", "10.1.2.0/24"} {
		insert(w, w.peerPrefixes, &tables.PeerPrefix{Prefix: prefix(p), Named: []uint32{2}})
	}
	return w
}

// effective returns what is missing of a ruleset.
func (w *world) effective(ruleset uint32) string {
	return w.lookEffective(w.DB.ReadTxn())(w.gates.ruleset.On(ruleset))
}

func TestEffective(t *testing.T) {
	const byMembers, byPrefixes = "members", "ipcache"
	withStatus := func(c *tables.IPCache) *tables.IPCache { return tables.WithStatus(c, pending()) }
	for _, tt := range []struct {
		name             string
		change           func(w *world)
		labels, prefixes string // what is missing of either ruleset
	}{
		{"at rest", func(*world) {}, "", ""},
		{"a selector is not evaluated", func(w *world) {
			tablestest.Delete(w.t, w.DB, w.matches, &tables.SelectorMatch{Selector: 1})
		}, "it is not evaluated", ""},
		{"a member changes", func(w *world) {
			insert(w, w.Members.RWTable, tables.WithStatus(w.member(2, 9, 5), pending()))
		}, byMembers, byMembers},
		{"a member is announced", func(w *world) {
			m := w.member(2, 1, 5)
			mirror := w.mirrorMember(w.member(2, 1, 3))
			mirror.Busy, mirror.Writing.Class = true, 9
			insert(w, w.Members.RWTable, tables.WithStatus(m, pending()))
			insert(w, w.PeerMirror, mirror)
		}, byMembers, byMembers},
		{"a member is pending and as it was", func(w *world) {
			insert(w, w.Members.RWTable, tables.WithStatus(w.member(2, 1, 5), pending()))
		}, "", ""},
		{"a member changes that was written after", func(w *world) {
			insert(w, w.Members.RWTable, tables.WithStatus(w.member(2, 9, 7), pending()))
			insert(w, w.PeerMirror, w.mirrorMember(w.member(2, 1, 5)))
		}, "", ""},
		{"a member comes", func(w *world) {
			insert(w, w.Members.RWTable, tables.WithStatus(w.member(7, 9, 5), pending()))
		}, "", ""},
		{"a member goes", func(w *world) {
			m := w.mirrorMember(w.member(2, 1, 3))
			m.Desired = false
			tablestest.Delete(w.t, w.DB, w.Members.RWTable, w.member(2, 1, 3))
			insert(w, w.PeerMirror, m)
		}, "", ""},
		{"an address changes that no selector selects", func(w *world) {
			insert(w, w.IPCache.RWTable, withStatus(w.address("10.9.0.1/32", 2, 5)))
		}, "", byPrefixes},
		{"an address goes", func(w *world) {
			m := w.mirrorAddress(w.address("10.9.0.1/32", 1, 3))
			m.Desired = false
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.9.0.1/32", 1, 3))
			insert(w, w.IPCacheMirror, m)
		}, "", byPrefixes},
		{"an address goes and its reconciler has not heard of it", func(w *world) {
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.9.0.1/32", 1, 3))
		}, "", byPrefixes},
		{"an address goes as another one comes, and its reconciler has not heard of it", func(w *world) {
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.9.0.1/32", 1, 3))
			insert(w, w.IPCache.RWTable, withStatus(w.address("10.9.0.2/32", 1, 5)))
		}, "", byPrefixes},
		{"an address went and is gone", func(w *world) {
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.9.0.1/32", 1, 3))
			mirror := w.mirrorAddress(w.address("10.9.0.1/32", 1, 3))
			tablestest.Delete(w.t, w.DB, w.IPCacheMirror, mirror)
		}, "", ""},
		{"an address goes that was written after", func(w *world) {
			m := w.mirrorAddress(w.address("10.9.0.1/32", 1, 5))
			m.Desired = false
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.9.0.1/32", 1, 3))
			insert(w, w.IPCacheMirror, m)
		}, "", ""},
		{"an address comes", func(w *world) {
			insert(w, w.IPCache.RWTable, withStatus(w.address("10.1.0.1/32", 2, 5)))
		}, "", ""},
		{"a prefix comes that the selector names", func(w *world) {
			mirror := w.mirrorAddress(w.address("10.1.0.0/16", 1, 3))
			tablestest.Delete(w.t, w.DB, w.IPCacheMirror, mirror)
			insert(w, w.IPCache.RWTable, withStatus(w.address("10.1.0.0/16", 1, 5)))
		}, "", "10.1.0.0/16"},
		{"an exception comes, and is announced", func(w *world) {
			m := w.mirrorAddress(w.address("10.1.2.0/24", 1, 0))
			m.Present, m.Busy, m.Writing = false, true, m.Value
			insert(w, w.IPCacheMirror, m)
			insert(w, w.IPCache.RWTable, withStatus(w.address("10.1.2.0/24", 1, 5)))
		}, "", "10.1.2.0/24"},
		{"a prefix is not in ipcache yet", func(w *world) {
			mirror := w.mirrorAddress(w.address("10.1.0.0/16", 1, 3))
			tablestest.Delete(w.t, w.DB, w.IPCacheMirror, mirror)
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.1.0.0/16", 1, 3))
		}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := effectiveWorld(t)
			tt.change(w)
			want := [2]string{tt.labels, tt.prefixes}
			for i, missing := range want {
				if missing != "" {
					want[i] = "selector " + string(rune('1'+i)) + ": " + missing
				}
			}
			require.Equal(t, want, [2]string{w.effective(1), w.effective(2)})
		})
	}
}

// A prefix waits for those inside it that selectors name and that come.
func TestInside(t *testing.T) {
	w := effectiveWorld(t)
	inside := func(p string) string {
		return w.lookInside(w.DB.ReadTxn())(w.gates.prefixesInside.OnPrefix(prefix(p)))
	}
	comes := func(p string, named bool) {
		insert(w, w.IPCache.RWTable, tables.WithStatus(w.address(p, 1, 5), pending()))
		if named {
			insert(w, w.peerPrefixes, &tables.PeerPrefix{Prefix: prefix(p), Named: []uint32{2}})
		}
	}
	require.Empty(t, inside("10.0.0.0/8"))
	comes("10.1.2.3/32", false)
	require.Empty(t, inside("10.0.0.0/8"))
	comes("10.1.9.0/24", true)
	require.Equal(t, "10.1.9.0/24", inside("10.0.0.0/8"))
	require.Equal(t, "10.1.9.0/24", inside("10.1.0.0/16"))
	require.Empty(t, inside("10.1.9.0/24"), "itself")
	require.Empty(t, inside("10.1.2.0/24"))
	insert(w, w.IPCacheMirror, w.mirrorAddress(w.address("10.1.9.0/24", 7, 3)))
	require.Empty(t, inside("10.0.0.0/8"), "that changes")
}

// A prefix goes after all around it are as desired.
func TestAround(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *world)
		want   string
	}{
		{"at rest", func(*world) {}, ""},
		{"one changes", func(w *world) {
			insert(
				w, w.IPCache.RWTable, tables.WithStatus(w.address("10.1.0.0/16", 7, 5), pending()),
			)
		}, "10.1.0.0/16"},
		{"one comes", func(w *world) {
			insert(
				w, w.IPCache.RWTable, tables.WithStatus(w.address("10.1.2.0/23", 7, 5), pending()),
			)
		}, "10.1.2.0/23"},
		{"one goes", func(w *world) {
			m := w.mirrorAddress(w.address("10.0.0.0/8", 1, 3))
			m.Desired = false
			insert(w, w.IPCacheMirror, m)
			tablestest.Delete(w.t, w.DB, w.IPCache.RWTable, w.address("10.0.0.0/8", 1, 3))
		}, "10.0.0.0/8"},
		{"one beside it changes", func(w *world) {
			insert(
				w, w.IPCache.RWTable, tables.WithStatus(w.address("10.9.0.1/32", 7, 5), pending()),
			)
		}, ""},
		{"itself", func(w *world) {
			insert(
				w, w.IPCache.RWTable, tables.WithStatus(w.address("10.1.2.0/24", 7, 5), pending()),
			)
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := effectiveWorld(t)
			tt.change(w)
			around := w.lookAround(w.DB.ReadTxn())
			require.Equal(t, tt.want, around(w.gates.prefixesAround.OnPrefix(prefix("10.1.2.0/24"))))
		})
	}
}

// Prefixes wait for others when they are written first, change their member, or go, and
// then only.
func TestPrefixReferences(t *testing.T) {
	w := newWorld(t, false)
	config := ipcache(&w.params, w.gates)
	p, a := w.address("10.0.0.0/8", 4, 0), w.address("10.0.0.1/32", 4, 0)
	member, inside := w.gates.member.On(4), w.gates.prefixesInside.OnPrefix(p.Prefix)
	require.Equal(t, []any{member, inside}, anys(config.Refers(p, nil)))
	require.Equal(t, []any{member, inside}, anys(config.Refers(p, &bpf.IPCacheValue{Member: 5})))
	require.Empty(t, config.Refers(p, &bpf.IPCacheValue{Member: 4, Flags: bpf.IPCachePod}))
	require.Equal(t, []any{member}, anys(config.Refers(a, nil)))
	require.Equal(t, []any{inside, w.gates.prefixesAround.OnPrefix(p.Prefix)},
		anys(config.Releases(p.MapKey())))
}

func anys[T any](list []T) (all []any) {
	for _, v := range list {
		all = append(all, v)
	}
	return all
}

// What a member's entry is: present, and not about to go.
func TestPeer(t *testing.T) {
	w := newWorld(t, false)
	missing := func(m tables.PeerMirror) bool {
		m.Key.Member = 4
		insert(w, w.PeerMirror, &m)
		return w.lookPeer(w.DB.ReadTxn())(w.gates.member.On(4)) != ""
	}
	require.NotEmpty(t, w.lookPeer(w.DB.ReadTxn())(w.gates.member.On(4)))
	require.True(t, missing(tables.PeerMirror{Busy: true}), "announced")
	require.False(t, missing(tables.PeerMirror{Present: true}))
	require.False(t, missing(tables.PeerMirror{Present: true, Busy: true}), "changing")
	require.True(t, missing(tables.PeerMirror{Present: true, Busy: true, Deleting: true}))
}

// What cached verdicts are judged again for, and whose connections are removed.
func TestKeptVerdicts(t *testing.T) {
	w := newWorld(t, false)
	pod, address := pods(&w.params, w.gates), ipcache(&w.params, w.gates)
	require.True(t, pod.Revises(&bpf.PodValue{Subject: 1}, &bpf.PodValue{Subject: 2}))
	require.False(t, pod.Revises(&bpf.PodValue{Subject: 1}, &bpf.PodValue{Subject: 1, IfIndex: 4}))
	require.False(t, pod.Revises(nil, &bpf.PodValue{Subject: 1}))
	require.False(t, pod.Flushes(nil, &bpf.PodValue{}))
	require.True(t, pod.Flushes(&bpf.PodValue{}, nil))
	require.False(t, pod.Flushes(&bpf.PodValue{}, &bpf.PodValue{}))

	ofPod, outside := &bpf.IPCacheValue{Flags: bpf.IPCachePod}, &bpf.IPCacheValue{Member: 3}
	for _, tt := range []struct {
		old, new       *bpf.IPCacheValue
		revises, flush bool
	}{
		{nil, ofPod, false, true},
		{ofPod, nil, false, true},
		{nil, outside, true, false},
		{outside, nil, true, false},
		{outside, ofPod, true, false},
		{outside, &bpf.IPCacheValue{Member: 4}, true, false},
		{outside, &bpf.IPCacheValue{Member: 3, Tunnel: bpf.Address{1}}, false, false},
	} {
		require.Equal(t, tt.revises, address.Revises(tt.old, tt.new), "%v %v", tt.old, tt.new)
		require.Equal(t, tt.flush, address.Flushes(tt.old, tt.new), "%v %v", tt.old, tt.new)
	}
}
