// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// sourceWorld is the rule of egress-sources, with tables that the test writes.
type sourceWorld struct {
	*sources
	t         *testing.T
	db        *statedb.DB
	endpoints statedb.RWTable[*tables.Endpoint]
}

func newSourceWorld(t *testing.T) *sourceWorld {
	db := statedb.New()
	sourceRows, err := tables.NewEgressSourceTable(db)
	require.NoError(t, err)
	members, err := tables.NewClassMemberTable(db)
	require.NoError(t, err)
	endpoints, err := tables.NewEndpointTable(db, tables.LocalNode{Name: "node"})
	require.NoError(t, err)
	s := &sources{sourceParams: sourceParams{Sources: sourceRows, Members: members, Endpoints: endpoints}, unknown: map[tables.LabelSetID]struct{}{}}
	return &sourceWorld{s, t, db, endpoints}
}

// change has an endpoint become another one, and computes what follows. nil is none.
func (w *sourceWorld) change(old, new *tables.Endpoint) {
	wtxn := w.db.WriteTxn(w.endpoints)
	defer wtxn.Abort()
	var err error
	if new != nil {
		_, _, err = w.endpoints.Insert(wtxn, new)
	} else {
		_, _, err = w.endpoints.Delete(wtxn, old)
	}
	require.NoError(w.t, err)
	txn := wtxn.Commit()
	affected := map[netip.Addr]struct{}{}
	for _, e := range []*tables.Endpoint{old, new} {
		if e != nil {
			w.affectedByEndpoint(txn, e, func(addr netip.Addr) { affected[addr] = struct{}{} })
		}
	}
	for addr := range affected {
		require.Empty(w.t, w.rows(txn, addr))
	}
}

// What chooses a label set is not waited for when the pods that have waited for it are
// gone, or have other labels.
func TestNobodyIsLeftToWait(t *testing.T) {
	pod := func(name, addr, app string) *tables.Endpoint {
		return &tables.Endpoint{
			Name: tables.Name{Namespace: "default", Name: name}, Node: "node", Addrs: []netip.Addr{netip.MustParseAddr(addr)},
			LabelSet: tables.NewLabelSet("default", "", labels.Set{"app": app}, nil),
		}
	}
	w := newSourceWorld(t)
	first, second := pod("first", "10.0.0.1", "web"), pod("second", "10.0.0.2", "web")
	w.change(nil, first)
	w.change(nil, second)
	w.change(first, nil)
	require.Contains(t, w.unknown, second.LabelSet.ID, "one still waits")

	relabelled := pod("second", "10.0.0.2", "db")
	w.change(second, relabelled)
	require.NotContains(t, w.unknown, second.LabelSet.ID)
	require.True(t, w.inUse(w.db.ReadTxn()), "it waits with its new labels")
	w.change(relabelled, nil)
	require.False(t, w.inUse(w.db.ReadTxn()))
}
