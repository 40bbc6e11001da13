// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// A sandbox that is made anew, with another address, is announced until the status has
// that, and so that other nodes know which status it is about.
func TestNewSandbox(t *testing.T) {
	in(t, nil, func(w *world) {
		w.pod(1, "node-1")
		w.attach(1, ipv4(1))
		require.Len(w, w.written(), 1)
		w.pod(1, "node-1", ipv4(1))
		w.detach(1)
		require.Len(w, w.written(), 1, "what was said does not count any more")

		w.attach(1, ipv4(2))
		writes := w.written()
		require.Len(w, writes, 2)
		require.Equal(w, []string{"web-001[10.0.0.2]"}, pods(writes[1]))
		require.JSONEq(w, `{"u1": ["10.0.0.1"]}`, writes[1].Annotations["sluice.net/status-addresses"])

		w.attach(1, ipv4(3)) // and once more, before the status
		writes = w.written()
		require.Len(w, writes, 3)
		require.Equal(w, []string{"web-001[10.0.0.3]"}, pods(writes[2]))

		w.attach(1, ipv4(1)) // the former address after all: the status is right
		writes = w.written()
		require.Len(w, writes, 4, "withdrawn at once")
		require.Empty(w, writes[3].Endpoints)
		require.Empty(w, writes[3].Annotations)

		w.attach(1, ipv4(4))
		require.Len(w, w.written(), 5)
		w.pod(1, "node-1", ipv4(4))
		time.Sleep(time.Hour)
		require.Len(w, w.written(), 5, "nothing is written when the status comes")
		w.pod(2, "node-1")
		w.attach(2, ipv4(5))
		writes = w.written()
		require.Equal(w, []string{"web-002[10.0.0.5]"}, pods(writes[5]), "it goes with a later write")
	})
}

// Pods that got each other's address are announced by one write.
func TestSwappedAddresses(t *testing.T) {
	in(t, nil, func(w *world) {
		for i := range 2 {
			w.pod(i, "node-1", ipv4(i))
			w.attach(i, ipv4(i))
		}
		require.Empty(w, w.written(), "the status is right")
		w.attach(0, ipv4(1))
		w.attach(1, ipv4(0))
		writes := w.written()
		require.Len(w, writes, 1)
		require.Equal(w, []string{"web-000[10.0.0.1]", "web-001[10.0.0.0]"}, pods(writes[0]))
		require.JSONEq(w, `{"u0": ["10.0.0.0"], "u1": ["10.0.0.1"]}`,
			writes[0].Annotations["sluice.net/status-addresses"])
	})
}

// An announcement is about the whole status: of two families it says all that the pod
// has now, also where only one has changed.
func TestNewSandboxDualStack(t *testing.T) {
	in(t, nil, func(w *world) {
		v6, next := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
		w.pod(1, "node-1", ipv4(1), v6)
		w.attach(1, ipv4(1), v6, netip.MustParseAddr("fd00::99"))
		require.Empty(w, w.written(), "a status may have fewer addresses than the interface")
		w.attach(1, ipv4(1), next)
		writes := w.written()
		require.Len(w, writes, 2)
		require.Equal(w, []string{"web-001[10.0.0.1]"}, pods(writes[0]))
		require.Equal(w, []string{"web-001[fd00::2]"}, pods(writes[1]))
		for _, s := range writes {
			require.JSONEq(w, `{"u1": ["10.0.0.1", "fd00::1"]}`,
				s.Annotations["sluice.net/status-addresses"])
		}
	})
}

// What the former agent has said of a new sandbox is withdrawn if it is wrong by now.
func TestFormerAgentNewSandbox(t *testing.T) {
	left := []tables.PodAddrs{{Pod: name(1), UID: "u1", Node: "node-1", Addrs: []netip.Addr{ipv4(2)},
		StatusAddrs: []netip.Addr{ipv4(1)}}}
	in(t, left, func(w *world) {
		w.pod(1, "node-1", ipv4(3))
		w.attach(1, ipv4(3))
		require.Empty(w, w.written(), "another status: it does not count")
		w.pod(1, "node-1", ipv4(1))
		w.attach(1, ipv4(1))
		writes := w.written()
		require.Len(w, writes, 1)
		require.Empty(w, writes[0].Endpoints)
	})
}
