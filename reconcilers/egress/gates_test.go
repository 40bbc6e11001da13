// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
)

// world is tables of which a test says what they hold, all of one pod that is to go
// from class 2 to class 1.
type world struct {
	*params
	t         *testing.T
	db        *statedb.DB
	classes   statedb.RWTable[*tables.Class]
	readiness statedb.RWTable[*tables.ClassReadiness]
	egress    statedb.RWTable[*tables.EgressClass]
	policies  statedb.RWTable[*tables.EgressPolicy]
	selector  *tables.Selector
}

var pod = netip.MustParseAddr("10.0.0.1")

func newWorld(t *testing.T) *world {
	db := statedb.New()
	classes, err := tables.NewClassTable(db)
	require.NoError(t, err)
	readiness, err := tables.NewClassReadinessTable(db)
	require.NoError(t, err)
	egress, err := tables.NewEgressClassTable(db)
	require.NoError(t, err)
	policies, err := tables.NewEgressPolicyTable(db)
	require.NoError(t, err)
	selectors, err := tables.NewSelectorTable(db)
	require.NoError(t, err)
	members, err := tables.NewClassMemberTable(db)
	require.NoError(t, err)
	endpoints, err := tables.NewEndpointTable(db, tables.LocalNode{Name: "node"})
	require.NoError(t, err)
	w := &world{
		&params{
			Classes: classes, Readiness: readiness, EgressClasses: egress, Policies: policies,
			Selectors: selectors, Members: members, Endpoints: endpoints,
		}, t, db, classes, readiness, egress, policies, nil,
	}
	w.selector, err = tables.NewSelector(tables.PodSelector(bpf.RoleEgress, tables.EgressSelector{}), tables.Resolution{})
	require.NoError(t, err)
	set := tables.NewLabelSet("default", "", nil, nil)
	wtxn := db.WriteTxn(selectors, members, endpoints)
	defer wtxn.Abort()
	_, _, err = selectors.Insert(wtxn, w.selector)
	require.NoError(t, err)
	_, _, err = endpoints.Insert(wtxn, &tables.Endpoint{Name: tables.Name{Namespace: "default", Name: "pod"}, Node: "node", Addrs: []netip.Addr{pod}, LabelSet: set})
	require.NoError(t, err)
	_, _, err = members.Insert(wtxn, &tables.ClassMember{Role: bpf.RoleEgress, LabelSet: set.ID, Class: 1})
	require.NoError(t, err)
	wtxn.Commit()
	return w
}

// class inserts a class, the policies that it has taken in, and its readiness.
func (w *world) class(number uint32, readiness tables.ClassReadiness, policies ...tables.PolicyChoice) {
	wtxn := w.db.WriteTxn(w.classes, w.readiness, w.egress)
	defer wtxn.Abort()
	_, _, err := w.classes.Insert(wtxn, &tables.Class{ClassKey: egressClass(number), Selectors: []tables.SelectorID{w.selector.ID}})
	require.NoError(w.t, err)
	_, _, err = w.egress.Insert(wtxn, &tables.EgressClass{Number: number, Policies: policies})
	require.NoError(w.t, err)
	_, readiness.Of, _ = w.egress.Get(wtxn, tables.EgressClassByNumber(number))
	readiness.ClassKey, readiness.Wanted, readiness.Registered, readiness.Complete = egressClass(number), true, true, true
	_, _, err = w.readiness.Insert(wtxn, &readiness)
	require.NoError(w.t, err)
	wtxn.Commit()
}

// policy inserts a policy that applies to all pods, and returns its revision.
func (w *world) policy(name string) statedb.Revision {
	wtxn := w.db.WriteTxn(w.policies)
	defer wtxn.Abort()
	_, _, err := w.policies.Insert(wtxn, &tables.EgressPolicy{Name: name, Selectors: []tables.EgressSelector{{}}})
	require.NoError(w.t, err)
	_, revision, _ := w.policies.Get(wtxn, tables.EgressPolicyByName(name))
	wtxn.Commit()
	return revision
}

// reason is why the pod may not go from class 2 to class 1 yet.
func (w *world) reason() string {
	_, reason := w.look(w.db.ReadTxn()).source(bpfmap.Op[bpf.SourceKey, bpf.SourceValue]{
		Key: bpf.SourceKey{Addr: bpf.AddressFrom(pod)}, Value: &bpf.SourceValue{Class: 1}, Old: &bpf.SourceValue{Class: 2},
	})
	return reason
}

// A class whose kernel entries are those of its policies is not ready while a policy
// has come to apply to it that it has not taken in.
func TestPolicyThatComesToApply(t *testing.T) {
	w := newWorld(t)
	first := tables.PolicyChoice{Policy: "first", Revision: w.policy("first")}
	w.class(1, tables.ClassReadiness{}, first)
	require.Empty(t, w.reason())
	second := tables.PolicyChoice{Policy: "second", Revision: w.policy("second")}
	require.Contains(t, w.reason(), "rules to be derived anew")
	w.class(1, tables.ClassReadiness{}, first, second)
	require.Empty(t, w.reason())
	w.policy("second")
	require.Contains(t, w.reason(), "rules to be derived anew")
}

// held is the readiness of a class of which the kernel does not have all, with those
// that addresses are to leave it for.
func held(to ...uint32) tables.ClassReadiness {
	return tables.ClassReadiness{RowsWanted: 1, Leaving: len(to) > 0, LeavingTo: to}
}

// A pod that was held, or came to another device, is let go only if its address is in no
// class of a former pod. A pod that stays is not held again.
func TestFormerClass(t *testing.T) {
	w := newWorld(t)
	sources, err := tables.NewSourceEntryTable(w.db)
	require.NoError(t, err)
	w.SourceEntries = sources
	reason := func(old *bpf.PodValue, flags bpf.PodFlags) string {
		return w.look(w.db.ReadTxn()).pod(bpfmap.Op[bpf.PodKey, bpf.PodValue]{
			Key: bpf.PodKey{Addr: bpf.AddressFrom(pod)}, Old: old, Value: &bpf.PodValue{IfIndex: 7, Flags: flags},
		})
	}
	formers := []*bpf.PodValue{nil, {IfIndex: 6}, {IfIndex: 7, Flags: bpf.PodEgressUnknown}}
	for _, old := range formers {
		require.Empty(t, reason(old, 0))
		require.Empty(t, reason(old, bpf.PodEgressSelected))
	}
	for class, own := range map[uint32]bool{1: true, 2: false} {
		wtxn := w.db.WriteTxn(sources)
		_, _, err = sources.Insert(wtxn, &tables.SourceEntry{
			Key: bpf.SourceKey{Addr: bpf.AddressFrom(pod)}, Value: bpf.SourceValue{Class: class},
		})
		require.NoError(t, err)
		wtxn.Commit()
		for _, old := range formers {
			require.NotEmpty(t, reason(old, 0))
			require.Equal(t, own, reason(old, bpf.PodEgressSelected) == "")
			require.Empty(t, reason(old, bpf.PodEgressUnknown))
		}
		require.Empty(t, reason(&bpf.PodValue{IfIndex: 7, Flags: bpf.PodEgressSelected}, 0))
	}
}

// Who comes to a class that others are to leave waits for them, unless they wait for it.
func TestWhoWaitsForWhom(t *testing.T) {
	for _, test := range []struct {
		name    string
		classes map[uint32]tables.ClassReadiness
		waits   bool
	}{
		{"nobody leaves", map[uint32]tables.ClassReadiness{1: held()}, true},
		{"others leave", map[uint32]tables.ClassReadiness{1: held(3), 3: held()}, true},
		{"others come in its place", map[uint32]tables.ClassReadiness{1: held(2), 2: held(1)}, false},
		{"others come by a third class", map[uint32]tables.ClassReadiness{1: held(3), 2: held(1), 3: held(2)}, false},
		{"others come, without having to wait", map[uint32]tables.ClassReadiness{1: held(2), 2: {Leaving: true, LeavingTo: []uint32{1}}}, true},
		{"a circle of others", map[uint32]tables.ClassReadiness{1: held(3), 3: held(4), 4: held(3)}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			for number, readiness := range test.classes {
				w.class(number, readiness)
			}
			require.Equal(t, test.waits, w.reason() != "")
		})
	}
}
