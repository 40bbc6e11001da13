// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTrafficEgressIPKeysRotate: while the key of the overlay is replaced, node after node, votes
// and probes go on: no node loses another, each address stays where it is, connections go on, and
// no packet is lost.
func TestTrafficEgressIPKeysRotate(t *testing.T) {
	t.Parallel()
	m := newMoving(t, 5*time.Second) // longer than a busy machine is late
	owners, losses := map[netip.Addr]*Node{}, map[*Node]int{}
	for _, addr := range movings {
		owners[addr] = m.has(addr)
	}
	for _, n := range m.Nodes {
		losses[n] = m.losses(n)
	}
	all := m.connect(5)
	l := &load{tr: m.traffic, begin: time.Now(), dropped: machineDrops(t)}
	for _, flow := range m.flows() {
		l.streams = append(l.streams, flow)
	}
	m.chat()
	before := len(m.uses.all())
	m.rotateKeys(func() {
		l.more(movingRate) // a second: many votes and probes
		m.goOn(all)
		m.invariant()
	})
	l.end(movings...)
	for _, u := range m.uses.all()[before:] {
		require.Equal(t, owners[u.addr].Name, m.macs[u.mac], u)
	}
	for _, n := range m.Nodes {
		require.Equal(t, losses[n], m.losses(n), "%s has lost another node", n.Name)
	}
	for _, addr := range movings {
		m.carries(addr, owners[addr])
	}
}
