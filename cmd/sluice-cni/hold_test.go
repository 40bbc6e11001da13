// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
)

var podKey = bpf.PodKey{Addr: bpf.AddressFrom(netip.MustParseAddr("10.1.0.7"))}

// pin pins what an agent does, which is then gone. The map is the one of the programs, in the
// active slot.
func (n *node) pin() *ebpf.Map {
	require.NoError(n.t, bpf.Probe(n.bpfs))
	n.t.Cleanup(func() { require.NoError(n.t, unix.Unmount(n.bpfs, unix.MNT_DETACH)) })
	log := slog.New(slog.DiscardHandler)
	h := hive.New(bpf.Cell, datapath.Cell, cell.Invoke(func(
		m *bpf.Maps, d *datapath.Datapath, l cell.Lifecycle,
	) {
		l.Append(cell.Hook{OnStart: func(cell.HookContext) error {
			errs := []error{m.Flip()}
			for _, p := range bpf.PinnedPrograms {
				_, err := bpf.PinProgram(bpf.ProgramsDir(n.bpfs), p, d.Program(p))
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}})
	}))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(n.t, flags.Parse([]string{
		"--bpffs=" + n.bpfs, "--map-size-ct-tcp=16", "--map-size-ct-any=16", "--map-size-nat=16",
		"--map-size-fragments=16",
	}))
	require.NoError(n.t, h.Start(log, n.t.Context()))
	require.NoError(n.t, h.Stop(log, n.t.Context()))
	pods, err := bpf.OpenActive(bpf.MapsDir(n.bpfs), "sluice_pods")
	require.NoError(n.t, err)
	n.t.Cleanup(func() { pods.Close() })
	return pods
}

func (n *node) entry(pods *ebpf.Map) (value bpf.PodValue) {
	require.NoError(n.t, pods.Lookup(&podKey, &value))
	return value
}

// links are the links of the pod's device that work.
func (n *node) links() (ids []link.ID) {
	for _, p := range bpf.PinnedPrograms {
		l, err := bpf.LoadDeviceLink(bpf.LinksDir(n.bpfs), n.device.Attrs().Index, p)
		require.NoError(n.t, err)
		require.NotNil(n.t, l, p)
		ids = append(ids, l.Info.ID)
		l.Close()
	}
	return ids
}

// Without an agent the plugin holds the pod by what the last one pinned, under the names
// by which the next one finds it.
func TestHold(t *testing.T) {
	n := newNode(t)
	pods := n.pin()
	n.must("STATUS")
	require.JSONEq(t, n.result(), n.must("ADD"))
	links, entry := n.links(), n.entry(pods)
	require.EqualValues(t, n.device.Attrs().Index, entry.IfIndex)
	require.Equal(t, bpf.PodLocal, entry.Flags)
	require.Zero(t, entry.Subject)
	require.NotZero(t, entry.MAC)
	n.told() // for the next agent

	// Once more: what is there stays, as it may be an agent's by then.
	known := entry
	known.Subject = 7
	require.NoError(t, pods.Put(&podKey, &known))
	n.must("ADD")
	require.Equal(t, links, n.links())
	require.Equal(t, known, n.entry(pods))

	// The entry of a former pod with the address does not.
	former := known
	former.IfIndex++
	require.NoError(t, pods.Put(&podKey, &former))
	n.must("ADD")
	require.Equal(t, entry, n.entry(pods))
	n.must("DEL")
}

// Connections of an earlier pod with the address end, whether the new one is held or an
// agent has it in force: the programs would let some of them go on. Others stay.
func TestForgetsConnections(t *testing.T) {
	pod, peer := netip.MustParseAddrPort("10.1.0.7:53"), netip.MustParseAddrPort("10.2.0.9:4000")
	out := ctmap.Tuple{Source: pod, Destination: peer, Protocol: unix.IPPROTO_UDP}
	in := ctmap.Tuple{Source: peer, Destination: pod, Protocol: unix.IPPROTO_UDP, Flags: ctmap.In}
	other := ctmap.Tuple{
		Source: netip.MustParseAddrPort("10.1.0.8:53"), Destination: peer, Protocol: unix.IPPROTO_UDP,
	}
	for name, agent := range map[string]bool{"held": false, "in force": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.pin()
			if agent {
				n.agent(applied)
			}
			log := slog.New(slog.DiscardHandler)
			ct, err := ctmap.OpenOrCreate(bpf.MapsDir(n.bpfs), ctmap.CT4Any, 16, log)
			require.NoError(t, err)
			defer ct.Close()
			for _, tuple := range []ctmap.Tuple{out, in, other} {
				require.NoError(t, ct.Update(tuple, ctmap.Entry{Lifetime: 1}))
			}
			n.must("ADD")
			var left []ctmap.Tuple
			require.NoError(t, ct.Each(func(tuple ctmap.Tuple, _ ctmap.Entry) bool {
				left = append(left, tuple)
				return true
			}))
			require.Equal(t, []ctmap.Tuple{other}, left)
		})
	}
}

// An agent that is there, and says that the pod is not ready, does not keep it from
// being held.
func TestHoldWhileAgentIsSlow(t *testing.T) {
	n := newNode(t)
	pods := n.pin()
	n.agent(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	n.must("ADD")
	n.links()
	require.EqualValues(t, n.device.Attrs().Index, n.entry(pods).IfIndex)
}

// What nothing can hold with is as if it was not there: programs that look at another
// map than is pinned, and a map of another layout.
func TestCannotHold(t *testing.T) {
	n := newNode(t)
	n.timeout = "300ms"
	n.pin()
	slots := filepath.Join(bpf.MapsDir(n.bpfs), "layout_4", "sluice_pods")
	inSlot := filepath.Join(bpf.MapsDir(n.bpfs), "layout_4", "1", "sluice_pods")
	for _, tc := range []struct {
		path      string
		valueSize uint32
		err       string
	}{
		{slots, 20, "program from_pod does not use the map sluice_pods that is pinned"},
		{inSlot, 40, "it has the layout of another version"},
	} {
		require.NoError(t, os.Remove(tc.path))
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: tc.valueSize,
			MaxEntries: 1})
		require.NoError(t, err)
		require.NoError(t, m.Pin(tc.path))
		m.Close()
		_, failed := n.call("ADD")
		require.NotNil(t, failed)
		require.EqualValues(t, types.ErrTryAgainLater, failed.Code)
		require.Contains(t, failed.Details, tc.err)
		_, failed = n.call("STATUS")
		require.NotNil(t, failed)
	}
}
