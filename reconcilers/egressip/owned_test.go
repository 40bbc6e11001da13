// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// TestAnnouncedAnew: a node that may have lost its address and got it again announces that at once,
// also if it has not seen it, as its agent stood still, or was just announcing it.
func TestAnnouncedAnew(t *testing.T) {
	voter := netip.MustParseAddr("192.0.2.1")
	kernel := bpf.VotersValue{Term: uint64(225 * time.Millisecond)}
	kernel.Sets[1] = bpf.VoterSet{Number: 1, Majority: 1}
	kernel.Sets[1].Voters[0] = bpf.AddressFrom(voter)
	o, now := &owned{addr: v4}, uint64(1e12)
	look := func(isValid bool) {
		entry := bpf.VotesValue{}
		if isValid {
			entry.Votes[1][0] = bpf.Vote{Until: now + 1, Set: 1}
		}
		o.votes(entry, kernel, map[netip.Addr]string{voter: "node-1"}, now)
		require.Equal(t, isValid, o.held)
	}
	announce := func(err error) { o.brought(nil, err, true, now) }
	look(true)
	require.Zero(t, o.due)
	for range announceFirst {
		o.due = now
		announce(nil)
	}
	require.Equal(t, now+announceLater, o.due)
	now += kernel.Term
	look(true)
	require.Equal(t, announceFirst, o.announced)

	now += kernel.Term + 1 // the agent stood still
	look(true)
	require.Zero(t, o.due)
	require.Zero(t, o.announced)

	o.due = now + retryAssign // it is being announced
	look(false)
	look(true)
	announce(nil)
	require.Zero(t, o.due)

	o.due = now + retryAssign
	announce(errors.New("no buffer space available"))
	require.Equal(t, now+announceSoon, o.due)
}

// A clock that is before the first generation does not make a node's generation the greatest.
func TestGenerationAt(t *testing.T) {
	require.EqualValues(t, 0, generationAt(generationEpoch))
	require.EqualValues(t, 0, generationAt(generationEpoch.Add(-time.Second)))
	require.EqualValues(t, 0, generationAt(time.Time{}))
	require.EqualValues(t, 15, generationAt(generationEpoch.Add(1500*time.Millisecond)))
}
