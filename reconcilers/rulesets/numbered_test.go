// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// A ruleset waits until all peers that the kernel has are in classes with their numbers for the
// names of ports in the ruleset. Those that it does not have, and refused ones, do not delay it.
func TestNumbered(t *testing.T) {
	w := newWorld(t, false)
	http := tables.NamedPort{Name: "http", Protocol: 6, Port: 80}
	class := func(n uint32, precision tables.Precision, ports ...tables.NamedPort) {
		insert(w, w.classes, &tables.Class{
			Life: life(n), Digest: bpf.Digest{byte(n)}, Ports: ports, Precision: precision,
		})
	}
	class(1, tables.Exact)
	class(2, tables.Exact, http)
	class(3, tables.Refused)
	insert(w, w.rulesets, &tables.Ruleset{Life: life(1), Rules: []*tables.Rule{{
		AnyPeer: true, Ports: []tables.PolicyPort{{Name: "http", Protocol: 6}},
	}}})
	member := func(n, class uint32, ports ...tables.NamedPort) *tables.Member {
		m := w.member(n, class, 1)
		m.Labels = tables.NewLabelSet("a", "", nil, ports)
		insert(w, w.Members.RWTable, m)
		return m
	}
	missing := func() string {
		return w.lookNumbered(w.DB.ReadTxn())(w.gates.ruleset.On(1))
	}
	other := http
	other.Protocol = 17
	insert(w, w.PeerMirror, w.mirrorMember(member(1, 1, other)))
	insert(w, w.PeerMirror, w.mirrorMember(member(2, 3, http)))
	m := member(3, 1, http)
	require.Empty(t, missing())

	insert(w, w.PeerMirror, w.mirrorMember(m))
	require.Equal(t, "port http/tcp: members", missing())
	m = member(3, 2, http)
	require.Equal(t, "port http/tcp: members", missing())
	busy := *w.mirrorMember(m)
	busy.Value.Class, busy.Busy, busy.Writing = 1, true, m.MapValue()
	insert(w, w.PeerMirror, &busy)
	require.Equal(t, "port http/tcp: members", missing())
	insert(w, w.PeerMirror, w.mirrorMember(m))
	require.Empty(t, missing())
	busy.Present, busy.Writing.Class = false, 1
	insert(w, w.PeerMirror, &busy)
	require.Equal(t, "port http/tcp: members", missing())
	tablestest.Delete(t, w.DB, w.PeerMirror, &busy)
	require.Empty(t, missing())
}
