// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// put inserts rows.
func put[Row any](t *testing.T, db *statedb.DB, table statedb.Table[Row], rows ...Row) {
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		_, _, err := table.(statedb.RWTable[Row]).Insert(wtxn, row)
		require.NoError(t, err)
	}
	wtxn.Commit()
}

// An address waits for each entry on its way to its ruleset, its route and its class, in
// the kernel as it is wanted.
func TestCNIAddress(t *testing.T) {
	db := statedb.New()
	in := &cniTables{
		DB:            db,
		Pods:          newTable(t, db, tables.NewPodTable),
		Subjects:      newTable(t, db, tables.NewSubjectTable),
		Routes:        newTable(t, db, tables.NewSubjectRouteTable),
		IPCache:       newTable(t, db, tables.NewIPCacheTable),
		Members:       newTable(t, db, tables.NewMemberTable),
		PodMirror:     newTable(t, db, tables.NewPodMirrorTable),
		SubjectMirror: newTable(t, db, tables.NewSubjectMirrorTable),
		RouteMirror:   newTable(t, db, tables.NewRouteMirrorTable),
		IPCacheMirror: newTable(t, db, tables.NewIPCacheMirrorTable),
		PeerMirror:    newTable(t, db, tables.NewPeerMirrorTable),
	}
	addr := netip.MustParseAddr("10.1.0.5")
	web := tables.Name{Namespace: "shop", Name: "web"}
	attachment := &tables.CNIAttachment{
		Pod: web, IfIndex: 12, Device: "veth-web", Addrs: []netip.Addr{addr},
	}
	says := func(waitsFor, held string) {
		t.Helper()
		l := &cniLook{cniTables: in, txn: db.ReadTxn(), watch: statedb.NewWatchSet()}
		gotWaits, gotHeld := l.address(attachment, addr)
		require.Equal(t, waitsFor, gotWaits)
		require.Equal(t, held, gotHeld)
	}
	pod := func(subject uint32) *tables.Pod {
		return &tables.Pod{Addr: addr, Endpoint: web, Subject: subject, Local: true, IfIndex: 12}
	}
	inPods := func(p *tables.Pod) {
		put(t, db, in.PodMirror, &tables.PodMirror{
			Key: p.MapKey(), Value: p.MapValue(), Present: true, Desired: true,
		})
	}

	says("10.1.0.5 is not known to be of veth-web yet", "")
	put(t, db, in.Pods, pod(0))
	says("10.1.0.5 is not in sluice_pods yet", "")
	inPods(pod(0))
	says("", "10.1.0.5 is held: it is not known yet what policies say of pod shop/web")

	put(t, db, in.Pods, pod(3))
	says("10.1.0.5 is not in sluice_pods yet", "")
	inPods(pod(3))
	subject := &tables.Subject{Life: tables.Life{Number: 3}, Ruleset: 5}
	put(t, db, in.Subjects, subject)
	says("10.1.0.5: the ruleset of subject 3 is not in sluice_subjects yet", "")
	mirror := &tables.SubjectMirror{
		Key: subject.MapKey(), Value: bpf.SubjectValue{Ruleset: 4}, Present: true,
	}
	put(t, db, in.SubjectMirror, mirror)
	says("10.1.0.5: the ruleset of subject 3 is not in sluice_subjects yet", "")
	changed := *mirror
	changed.Value.Ruleset = 5
	put(t, db, in.SubjectMirror, &changed)

	route := &tables.SubjectRoute{Subject: 3, EgressRuleset: 7}
	put(t, db, in.RouteMirror, &tables.RouteMirror{
		Key: route.MapKey(), Value: route.MapValue(), Present: true,
	})
	says("10.1.0.5: a route of subject 3 is in sluice_routes still", "")
	put(t, db, in.Routes, &tables.SubjectRoute{Subject: 3, EgressRuleset: 8})
	says("10.1.0.5: the route of subject 3 is not in sluice_routes yet", "")
	put(t, db, in.Routes, route)
	says("10.1.0.5 is not in sluice_ipcache yet", "")

	peer := &tables.IPCache{Prefix: netip.PrefixFrom(addr, 32), Member: 9}
	put(t, db, in.IPCache, peer)
	put(t, db, in.IPCacheMirror, &tables.IPCacheMirror{
		Key: peer.MapKey(), Value: peer.MapValue(), Present: true,
	})
	says("10.1.0.5: the class of member 9 is not in sluice_peers yet", "")
	member := &tables.Member{Life: tables.Life{Number: 9}, Class: 2}
	put(t, db, in.Members, member)
	written := &tables.PeerMirror{
		Key: member.MapKey(), Value: member.MapValue(), Present: true, Busy: true,
	}
	put(t, db, in.PeerMirror, written)
	says("10.1.0.5: the class of member 9 is not in sluice_peers yet", "")
	confirmed := *written
	confirmed.Busy = false
	put(t, db, in.PeerMirror, &confirmed)
	says("", "")
}
