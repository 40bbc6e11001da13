// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const podsMap = "sluice_pods"

// TestFlip: the slot comes into force when everything is written that is desired at the
// start, and not before.
func TestFlip(t *testing.T) {
	inBubble(t, func(w *world) {
		w.startFlipped().stop()
		a := w.start()
		before := a.current()
		a.leaves(0, "", true)
		a.pass(time.Minute)
		require.Zero(t, a.slots.NumObjects(a.DB.ReadTxn()), "the links are not known")
		a.leaves(0, podsMap, false)
		close(a.links)
		a.pass(time.Minute)
		a.requireWaits("what is desired of " + podsMap)
		for left := range int64(3) {
			a.leaves(3-left, podsMap, true)
			a.pass(patience - time.Second)
			a.requireWaits(podsMap)
		}
		require.Equal(t, before, a.current())

		a.leaves(0, "", true)
		a.pass(pollInterval)
		a.requireFlipped()
		require.Equal(t, before+1, a.current(), "connections are judged by the new maps")
		require.NotContains(t, a.log(), "WARN")
	})
}

// TestRefused: what the kernel refuses holds up the flip for some time.
func TestRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.start()
		close(a.links)
		a.leaves(2, podsMap, true)
		a.pass(patience - time.Second)
		a.requireWaits(podsMap)
		require.NotContains(t, a.log(), "WARN")
		a.pass(2 * time.Second)
		a.requireFlipped()
		require.Regexp(t, "WARN.*Some entries cannot be written.*entries=2 map="+podsMap, a.log())
	})
}

// TestDevices: the flip waits for devices of pods if the agent can find them, and only for
// some time.
func TestDevices(t *testing.T) {
	pod := tables.LocalEndpoint{Addr: netip.MustParseAddr("10.0.0.1")}
	for name, test := range map[string]struct {
		finds bool
		then  func(*agent)
	}{
		"not searched": {false, func(*agent) {}},
		"found": {true, func(a *agent) {
			a.requireWaits("the device of 10.0.0.1")
			found := pod
			found.IfIndex = 7
			a.locals.Put(&found)
			a.pass(pollInterval)
			a.requireWaits("the entry of 10.0.0.1")
			entry := tables.Pod{Addr: pod.Addr, IfIndex: 7, Reconciled: tables.Pending()}
			a.pods.Put(&entry)
			a.pass(pollInterval)
			a.requireWaits("the entry of 10.0.0.1")
			written := entry
			written.Status = reconciler.StatusDone()
			a.pods.Put(&written)
			a.pass(pollInterval)
		}},
		"not found": {true, func(a *agent) {
			a.requireWaits("the device of 10.0.0.1")
			a.pass(findMost)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				a := w.start()
				a.finds = test.finds
				a.locals.Put(&pod)
				a.leaves(0, "", true)
				close(a.links)
				a.pass(findMost / 2)
				test.then(a)
				a.requireFlipped()
			})
		})
	}
}

// TestFlipFails: the flip is tried again.
func TestFlipFails(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.start()
		w.memory.Fail(bpf.StateMap, bpf.OpUpdate, unix.EPERM, -1)
		a.leaves(0, "", true)
		close(a.links)
		a.pass(time.Minute)
		active, own, err := a.Maps.Slot()
		require.NoError(t, err)
		require.NotEqual(t, own, active)
		require.ErrorIs(t, a.failure("flip"), unix.EPERM)
		w.memory.Fail(bpf.StateMap, bpf.OpUpdate, nil, 0)
		a.pass(time.Minute)
		a.requireFlipped()
		require.NoError(t, a.failure("flip"))
	})
}

// TestFormerSlot: the slot of the agent before serves until the flip, and stays for packets
// that are under way.
func TestFormerSlot(t *testing.T) {
	inBubble(t, func(w *world) {
		former := w.startFlipped()
		_, slot, err := former.Maps.Slot()
		require.NoError(t, err)
		former.stop()
		a := w.start()
		close(a.links)
		a.pass(time.Minute)
		a.leaves(0, "", true)
		a.pass(bpf.SlotGrace / 2)
		a.requireFlipped()
		require.True(t, w.has(slot))
		a.pass(bpf.SlotGrace)
		require.False(t, w.has(slot))
		require.True(t, w.has(1-slot))
	})
}

// has reports whether there are maps in a slot.
func (w *world) has(slot uint32) (there bool) {
	w.t.Helper()
	names := w.memory.Maps()
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.HasSuffix(name, "/"+fmt.Sprint(slot)+"/"+podsMap)
	})
}

// TestSweep: maps of other versions go when no program that looks into them is attached.
func TestSweep(t *testing.T) {
	inBubble(t, func(w *world) {
		const old = "sluice_of_old"
		_, err := bpf.Open[bpf.PodKey, bpf.PodValue](w.memory, bpf.Spec{
			Name: old, Type: bpf.TypeHash, MaxEntries: 1,
		})
		require.NoError(t, err)
		a := w.startFlipped()
		a.pass(time.Minute)
		require.Contains(t, w.memory.Maps(), old, "nothing is attached yet")
		backstop := tables.Attachment{Program: bpf.ProgramBackstop, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
		device := tables.Attachment{IfIndex: 1, Program: bpf.ProgramFromPod, Reconciled: tables.Pending()}
		a.attached.Put(&device)
		a.attached.Put(&backstop)
		a.pass(time.Minute)
		require.Contains(t, w.memory.Maps(), old, "a device has another version's program")
		device.Status = reconciler.StatusDone()
		a.attached.Put(tables.Clone(&device))
		a.pass(0)
		require.NotContains(t, w.memory.Maps(), old)
		require.Contains(t, a.log(), old)
	})
}
