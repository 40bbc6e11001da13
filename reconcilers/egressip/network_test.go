// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// An answer to a solicitation is a conflict of IPv6.
func TestProbe6(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, probe(t.Context(), v6, w.near.Index))
	answer, _, err := ndp.Listen(w.far, ndp.LinkLocal)
	require.NoError(t, err)
	group, err := ndp.SolicitedNodeMulticast(v6)
	require.NoError(t, err)
	require.NoError(t, answer.JoinGroup(group))
	go func() {
		for {
			m, _, from, err := answer.ReadFrom()
			if err != nil {
				return
			}
			if ns, ok := m.(*ndp.NeighborSolicitation); ok && ns.TargetAddress == v6 {
				answer.WriteTo(&ndp.NeighborAdvertisement{Solicited: true, TargetAddress: v6,
					Options: linkLayer(ndp.Target, w.far)}, nil, from)
			}
		}
	}()
	defer answer.Close()
	require.ErrorContains(t, probe(t.Context(), v6, w.near.Index),
		"is in use by "+w.far.HardwareAddr.String())
}

// When the link of the device comes up again, the address is announced again as at first, and it is
// given to the device if it has got lost meanwhile.
func TestAnnouncedWithTheLink(t *testing.T) {
	w := newWorld(t)
	listen, err := arp.Dial(w.far)
	require.NoError(t, err)
	defer listen.Close()
	announced := func(times int) {
		require.NoError(t, listen.SetDeadline(time.Now().Add(await.Bound)))
		for n := 0; n < times; {
			p, _, err := listen.Read()
			require.NoError(t, err)
			if p.SenderIP == v4 && p.TargetIP == v4 {
				n++
			}
		}
	}
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	announced(announceFirst)
	require.NoError(t, remove(v4))
	isOwner := func() bool {
		_, _, found := w.Owners.Get(w.db.ReadTxn(), tables.EgressIPOwnerByAddr(v4))
		return found
	}
	w.eventually("it tells others", isOwner)
	w.link(false)
	w.eventually("it comes again", func() bool { return w.has(v4) })
	w.eventually("it says why that is of no use", func() bool {
		return strings.HasSuffix(w.row(v4).Problem, "has no link")
	})
	w.eventually("it does not tell others that it has the address", func() bool { return !isOwner() })
	w.link(true)
	announced(announceFirst)
	w.eventually("it tells others again", isOwner)
	w.eventually("nothing is wrong", func() bool { return w.row(v4).Problem == "" })
}
