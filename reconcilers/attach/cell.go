// SPDX-License-Identifier: Apache-2.0

// Package attach has the kernel run the programs where tables want them.
//
//	attachments ─────► tcx links of devices, netfilter links; pinned in <bpffs>/sluice/links
//	map-config ──────► from_pod and to_pod, pinned in <bpffs>/sluice/programs
//	overlay-devices ─► the VXLAN device
//	devices ─────────► attachments of a device that was replaced are made anew
//	local-endpoints ─► neighbours that the kernel asks for, where the device of a pod is not known
//
// Links outlive the agent, and the next one replaces their programs in place when its maps are
// in force: no packet passes unseen. Before the first program is attached to a pod's device,
// the connections that the pod has are taken over from the kernel's conntrack table. Without
// programs (--bpf=memory) the rows are done as they come.
package attach

import (
	"iter"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netns"
	"golang.org/x/time/rate"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// Cell reconciles attachments and overlay devices.
var Cell = cell.Module(
	"attach",
	"Programs at devices and the overlay device",

	cell.Provide(newLinks),
	cell.Invoke(registerOverlayDevices, registerAttachments, registerLinks, registerPins),
)

type params struct {
	cell.In

	Reconciler reconciler.Params
	Log        *slog.Logger
	Jobs       job.Group
	DB         *statedb.DB
	Datapath   *datapath.Datapath
	Maps       *bpf.Maps

	Slots          statedb.Table[*tables.Slot]
	Attachments    tables.Desired[*tables.Attachment]
	OverlayDevices tables.Desired[*tables.OverlayDevice]
	Devices        statedb.Table[*tables.Device]        `optional:"true"`
	Locals         statedb.Table[*tables.LocalEndpoint] `optional:"true"`
	Pods           statedb.Table[*tables.Pod]           `optional:"true"`

	CNIPlugin tables.CNIPlugin    `optional:"true"`
	Tampering *tampering.Recorder `optional:"true"`

	// Namespace is the network namespace of the devices, that of the process if
	// it is not given. It belongs to the provider and is to outlive the hive.
	Namespace netns.NsHandle `optional:"true"`
}

// Failures are retried soon. What other programs do to links is noticed by the guard, all else is
// repaired every few minutes.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 10 * time.Second
	pruneEvery = 10 * time.Minute
	refreshAge = 5 * time.Minute
)

// roundSize is how many programs are attached before it is said of which that is done:
// pods are held until then, and each takes some 10 ms.
const roundSize = 8

func registerAttachments(p params) error {
	s := newSeeder(p.Log, namespace(p.Namespace), p.Datapath, p.reportedDevices)
	if p.Locals != nil {
		f := &finder{db: p.DB, locals: p.Locals, datapath: p.Datapath, ask: namespace(p.Namespace).askFor}
		p.Jobs.Add(job.OneShot("find-devices", f.run))
	}
	if p.Pods != nil {
		s.pods = func() iter.Seq2[*tables.Pod, statedb.Revision] {
			return p.Pods.All(p.DB.ReadTxn())
		}
	}
	p.Jobs.Add(job.OneShot("seed-connections", s.run))
	_, err := reconciler.Register(
		p.Reconciler,
		p.Attachments.RWTable,
		tables.Clone[tables.Attachment],
		tables.WithStatus[tables.Attachment],
		(*tables.Attachment).GetStatus,
		&attachments{
			datapath: p.Datapath, links: p.links, memory: p.memory, seed: s.beforeAttach,
			table: p.Attachments, slots: p.Slots, reported: p.reportedDevices,
		},
		nil, // no batch operations
		reconciler.WithName("attachments"),
		reconciler.WithRetry(retryFirst, retryLast),
		reconciler.WithPruning(pruneEvery),
		reconciler.WithRefreshing(refreshAge, rate.NewLimiter(100, 100)),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)),
	)
	for program := bpf.ProgramFromPod; program <= bpf.ProgramBackstop; program++ {
		p.Tampering.Watch(program.String(), tables.TamperedDetached, tables.TamperedReplaced,
			tables.TamperedUnpinned, tables.TamperedBehind)
	}
	g := &guard{
		db: p.DB, attachments: p.Attachments.RWTable, links: p.links, datapath: p.Datapath,
		tampering: p.Tampering,
	}
	p.Jobs.Add(job.OneShot("guard-links", g.run))
	if err == nil && p.Devices != nil {
		w := &watcher{
			db: p.DB, devices: p.Devices, attachments: p.Attachments.RWTable, links: p.links,
			datapath: p.Datapath,
		}
		p.Jobs.Add(job.OneShot("watch-devices", w.run))
	}
	return err
}

// reportedDevices returns when the CNI plugin reported each device.
func (p params) reportedDevices() (map[int]time.Time, error) {
	if !p.CNIPlugin.Enabled {
		return nil, nil
	}
	return cnifile.Devices(p.CNIPlugin.RunDir)
}

// links are those of the back end in which the maps are now.
func (p params) links() links {
	kernel, ok := p.Maps.Backend().(*bpf.Kernel)
	if !ok {
		return links{}
	}
	return links{
		dir: filepath.Clean(kernel.LinksDir()), programs: filepath.Clean(kernel.ProgramsDir()),
		ns: namespace(p.Namespace),
	}
}

// memory is the back end in which the maps are now, nil if they are in the kernel.
func (p params) memory() *bpf.Memory {
	memory, _ := p.Maps.Backend().(*bpf.Memory)
	return memory
}

func registerPins(p params, holding tables.Holding) {
	pinner := &pinner{
		datapath: p.Datapath, links: p.links, holding: holding, tampering: p.Tampering,
	}
	p.Jobs.Add(job.OneShot("pin-programs", pinner.run))
}

func registerOverlayDevices(p params) error {
	_, err := reconciler.Register(
		p.Reconciler,
		p.OverlayDevices.RWTable,
		tables.Clone[tables.OverlayDevice],
		tables.WithStatus[tables.OverlayDevice],
		(*tables.OverlayDevice).GetStatus,
		&overlayDevices{datapath: p.Datapath, links: p.links, ns: namespace(p.Namespace)},
		nil, // no batch operations
		reconciler.WithName("overlay-devices"),
		reconciler.WithRetry(retryFirst, retryLast),
		reconciler.WithPruning(pruneEvery),
		reconciler.WithRefreshing(refreshAge, rate.NewLimiter(100, 100)),
	)
	return err
}
