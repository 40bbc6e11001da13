// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// An address waits for each entry on its way to its ruleset, its route and its class, in
// the kernel as it is wanted.
func TestCNIAddress(t *testing.T) {
	db := statedb.New()
	in := &cniTables{
		DB:            db,
		Pods:          tablestest.Open(t, db, tables.NewPodTable),
		Subjects:      tablestest.Open(t, db, tables.NewSubjectTable),
		Routes:        tablestest.Open(t, db, tables.NewSubjectRouteTable),
		IPCache:       tablestest.Open(t, db, tables.NewIPCacheTable),
		Members:       tablestest.Open(t, db, tables.NewMemberTable),
		PodMirror:     tablestest.Open(t, db, tables.NewPodMirrorTable),
		SubjectMirror: tablestest.Open(t, db, tables.NewSubjectMirrorTable),
		RouteMirror:   tablestest.Open(t, db, tables.NewRouteMirrorTable),
		IPCacheMirror: tablestest.Open(t, db, tables.NewIPCacheMirrorTable),
		PeerMirror:    tablestest.Open(t, db, tables.NewPeerMirrorTable),
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
		tablestest.Insert(t, db, in.PodMirror, &tables.PodMirror{
			Key: p.MapKey(), Value: p.MapValue(), Present: true, Desired: true,
		})
	}

	says("10.1.0.5 is not known to be of veth-web yet", "")
	tablestest.Insert(t, db, in.Pods, pod(0))
	says("10.1.0.5 is not in sluice_pods yet", "")
	inPods(pod(0))
	says("", "10.1.0.5 is held: it is not known yet what policies say of pod shop/web")

	tablestest.Insert(t, db, in.Pods, pod(3))
	says("10.1.0.5 is not in sluice_pods yet", "")
	inPods(pod(3))
	subject := &tables.Subject{Life: tables.Life{Number: 3}, Ruleset: 5}
	tablestest.Insert(t, db, in.Subjects, subject)
	says("10.1.0.5: the ruleset of subject 3 is not in sluice_subjects yet", "")
	mirror := &tables.SubjectMirror{Key: subject.MapKey(), Value: bpf.SubjectValue{Ruleset: 4}, Present: true}
	tablestest.Insert(t, db, in.SubjectMirror, mirror)
	says("10.1.0.5: the ruleset of subject 3 is not in sluice_subjects yet", "")
	changed := *mirror
	changed.Value.Ruleset = 5
	tablestest.Insert(t, db, in.SubjectMirror, &changed)

	route := &tables.SubjectRoute{Subject: 3, EgressRuleset: 7}
	tablestest.Insert(t, db, in.RouteMirror, &tables.RouteMirror{
		Key: route.MapKey(), Value: route.MapValue(), Present: true,
	})
	says("10.1.0.5: a route of subject 3 is in sluice_routes still", "")
	tablestest.Insert(t, db, in.Routes, &tables.SubjectRoute{Subject: 3, EgressRuleset: 8})
	says("10.1.0.5: the route of subject 3 is not in sluice_routes yet", "")
	tablestest.Insert(t, db, in.Routes, route)
	says("10.1.0.5 is not in sluice_ipcache yet", "")

	peer := &tables.IPCache{Prefix: netip.PrefixFrom(addr, 32), Member: 9}
	tablestest.Insert(t, db, in.IPCache, peer)
	tablestest.Insert(t, db, in.IPCacheMirror, &tables.IPCacheMirror{
		Key: peer.MapKey(), Value: peer.MapValue(), Present: true,
	})
	says("10.1.0.5: the class of member 9 is not in sluice_peers yet", "")
	member := &tables.Member{Life: tables.Life{Number: 9}, Class: 2}
	tablestest.Insert(t, db, in.Members, member)
	written := &tables.PeerMirror{Key: member.MapKey(), Value: member.MapValue(), Present: true, Busy: true}
	tablestest.Insert(t, db, in.PeerMirror, written)
	says("10.1.0.5: the class of member 9 is not in sluice_peers yet", "")
	confirmed := *written
	confirmed.Busy = false
	tablestest.Insert(t, db, in.PeerMirror, &confirmed)
	says("", "")
}
