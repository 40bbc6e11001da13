// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

// agent is one of nothing but maps, programs and the tables of this package.
type agent struct {
	t           testing.TB
	hive        *hive.Hive
	db          *statedb.DB
	datapath    *datapath.Datapath
	maps        *bpf.Maps
	attachments tablestest.Table[*tables.Attachment]
	overlays    tablestest.Table[*tables.OverlayDevice]
	devices     tablestest.Table[*tables.Device]
	config      tablestest.Table[*tables.ConfigMirror]
	policies    tablestest.Table[*tables.NetworkPolicy]
	pods        tablestest.Table[*tables.Pod]
	tampered    statedb.Table[*tables.Tampering]
	complete    []func(statedb.WriteTxn)
}

func startAgent(t testing.TB, ns netns.NsHandle, args ...string) *agent {
	a := &agent{t: t}
	opts := hive.DefaultOptions()
	opts.ModulePrivateProviders = cell.ModulePrivateProviders{
		func(r job.Registry, h cell.Health, id cell.ModuleID) job.Group {
			return r.NewGroup(h.NewScope(string(id)))
		},
	}
	a.hive = hive.NewWithOptions(opts,
		statedb.Cell, job.Cell, bpf.Cell, datapath.Cell,
		cell.SimpleHealthCell, tampering.Cell,
		cell.Provide(
			tables.NewAttachmentTable, tables.NewOverlayDeviceTable, tables.NewDeviceTable,
			tables.NewSlotTable, tables.NewConfigMirrorTable, tables.NewNetworkPolicyTable,
			tables.NewPodTable, statedb.RWTable[*tables.Pod].ToTable,
			statedb.RWTable[*tables.Slot].ToTable, statedb.RWTable[*tables.ConfigMirror].ToTable,
			statedb.RWTable[*tables.NetworkPolicy].ToTable, statedb.RWTable[*tables.Attachment].ToTable,
			func() tables.Enforcement { return tables.EnforcementDefault },
			statedb.RWTable[*tables.Device].ToTable,
			tables.NewDesired[*tables.Attachment], tables.NewDesired[*tables.OverlayDevice],
			func() netns.NsHandle { return ns },
			func() tables.LocalNode { return tables.LocalNode{Name: "node-1"} },
		),
		Cell,
		cell.Invoke(func(db *statedb.DB, d *datapath.Datapath, m *bpf.Maps, attachments statedb.RWTable[*tables.Attachment],
			overlays statedb.RWTable[*tables.OverlayDevice], devices statedb.RWTable[*tables.Device],
			config statedb.RWTable[*tables.ConfigMirror],
			policies statedb.RWTable[*tables.NetworkPolicy],
			pods statedb.RWTable[*tables.Pod], tampered statedb.Table[*tables.Tampering],
		) {
			a.tampered = tampered
			a.db, a.datapath, a.maps = db, d, m
			a.attachments = tablestest.Of(t, db, attachments)
			a.overlays = tablestest.Of(t, db, overlays)
			a.devices = tablestest.Of(t, db, devices)
			a.config = tablestest.Of(t, db, config)
			a.policies = tablestest.Of(t, db, policies)
			a.pods = tablestest.Of(t, db, pods)
			wtxn := db.WriteTxn(attachments, overlays)
			a.complete = []func(statedb.WriteTxn){
				attachments.RegisterInitializer(wtxn, "test"), overlays.RegisterInitializer(wtxn, "test"),
			}
			wtxn.Commit()
		}),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.hive.RegisterFlags(flags)
	require.NoError(t, flags.Parse(append([]string{
		"--map-size-ct-tcp=1000", "--map-size-ct-any=1000", "--map-size-nat=1000", "--map-size-ipcache=1000",
	}, args...)))
	require.NoError(t, a.hive.Start(testLog(t), context.Background()))
	require.NoError(t, a.maps.Flip())
	return a
}

func (a *agent) stop() { require.NoError(a.t, a.hive.Stop(testLog(a.t), context.Background())) }

func (a *agent) initialized() {
	wtxn := a.db.WriteTxn(a.attachments, a.overlays)
	for _, done := range a.complete {
		done(wtxn)
	}
	wtxn.Commit()
}

// attach wants programs at a device and waits for them.
func (a *agent) attach(ifIndex int, programs ...bpf.Program) {
	a.t.Helper()
	for _, p := range programs {
		a.attachments.Put(&tables.Attachment{
			IfIndex: ifIndex, Program: p, Reconciled: tables.Pending(),
		})
	}
	for _, p := range programs {
		a.await(ifIndex, p, func(row *tables.Attachment) bool { return row.Status.Kind == reconciler.StatusKindDone })
	}
}

func (a *agent) await(ifIndex int, p bpf.Program, ok func(*tables.Attachment) bool) (row *tables.Attachment) {
	a.t.Helper()
	await.True(a.t, func() bool {
		row, _, _ = a.attachments.Get(a.db.ReadTxn(), tables.AttachmentByID(tables.AttachmentID{IfIndex: ifIndex, Program: p}))
		return row != nil && ok(row)
	})
	return row
}

func TestMemoryModeDoesNothing(t *testing.T) {
	a := startAgent(t, 0, "--bpf=memory")
	defer a.stop()
	a.initialized()
	a.attach(4242, bpf.ProgramFromPod)
	a.overlays.Put(overlayRow("192.0.2.1"))
	wanted := overlayRow("192.0.2.1")
	wanted.Status = reconciler.StatusPending()
	a.overlays.Put(wanted)
	await.True(t, func() bool {
		row, _, _ := a.overlays.Get(a.db.ReadTxn(), tables.OverlayDeviceByName(overlayName))
		return row.Status.Kind == reconciler.StatusKindDone
	})
}

func TestAgents(t *testing.T) {
	n, bpffs := newNetwork(t), testBPFFS(t)
	first, second := n.addVeth("pod0", "eth0", 0), n.addVeth("pod1", "eth1", 0)

	a := startAgent(t, n.ns, "--bpffs="+bpffs)
	a.attach(first, bpf.ProgramFromPod, bpf.ProgramToPod)
	a.attach(second, bpf.ProgramFromPod)
	a.attach(0, bpf.ProgramBackstop)
	link := a.await(first, bpf.ProgramFromPod, func(*tables.Attachment) bool { return true }).LinkID
	require.NotZero(t, link)
	a.stop()
	require.Len(t, n.running(first, ebpf.AttachTCXIngress), 1, "the programs run on without the agent")

	// What the next one does not want is ended, but not before it knows that.
	a = startAgent(t, n.ns, "--bpffs="+bpffs)
	defer a.stop()
	a.attach(first, bpf.ProgramFromPod)
	require.Equal(t, link, a.await(first, bpf.ProgramFromPod, func(*tables.Attachment) bool { return true }).LinkID)
	require.Len(t, n.running(second, ebpf.AttachTCXIngress), 1)
	// What there was is among the rows, for the rule that keeps them to remove.
	former := a.await(second, bpf.ProgramFromPod, func(row *tables.Attachment) bool {
		return row.Origin == tables.FormerAttachment
	})
	require.Equal(t, reconciler.StatusKindDone, former.Status.Kind)
	wtxn := a.db.WriteTxn(a.attachments)
	for _, row := range statedb.Collect(a.attachments.All(wtxn)) {
		if row.Origin == tables.FormerAttachment {
			_, _, err := a.attachments.Delete(wtxn, row)
			require.NoError(t, err)
		}
	}
	wtxn.Commit()
	a.initialized()
	await.True(t, func() bool {
		return len(n.running(second, ebpf.AttachTCXIngress)) == 0 && len(n.running(first, ebpf.AttachTCXEgress)) == 0
	})
	require.Len(t, n.running(first, ebpf.AttachTCXIngress), 1)
	await.True(t, func() bool { // a link is ended first, and its pin removed then
		pins, err := bpf.PinnedLinks(filepath.Join(bpffs, "sluice", "links"))
		return err == nil && slices.Equal(pins, []string{pinName(first, bpf.ProgramFromPod)})
	})
}

// A device that goes and returns under the same name and index changes nothing
// in what is wanted.
func TestDeviceReturns(t *testing.T) {
	n, bpffs := newNetwork(t), testBPFFS(t)
	index := n.addVeth("pod0", "eth0", 0)
	a := startAgent(t, n.ns, "--bpffs="+bpffs)
	defer a.stop()
	a.initialized()
	a.devices.Put(&tables.Device{Index: index, Name: "pod0", MAC: "02:00:00:00:00:01"})
	a.attach(index, bpf.ProgramFromPod)
	before := a.await(index, bpf.ProgramFromPod, func(*tables.Attachment) bool { return true }).LinkID

	n.removeDevice("pod0")
	n.addVeth("pod0", "eth0", index)
	a.devices.Put(&tables.Device{Index: index, Name: "pod0", MAC: "02:00:00:00:00:02"})
	a.await(index, bpf.ProgramFromPod, func(row *tables.Attachment) bool {
		return row.Status.Kind == reconciler.StatusKindDone && row.LinkID != before
	})
	require.Len(t, n.running(index, ebpf.AttachTCXIngress), 1)
}
