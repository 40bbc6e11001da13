// SPDX-License-Identifier: Apache-2.0

package mapsync_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Listener is an observed row: a pod that has a port open.
type Listener struct {
	Pod  string
	Port Port
}

func (*Listener) TableHeader() []string { return []string{"Pod", "Port"} }
func (l *Listener) TableRow() []string  { return []string{l.Pod, l.Port.String()} }

var (
	listenerPodIndex = tables.UniqueIndex("pod", tables.StringKeys,
		func(l *Listener) string { return l.Pod })
	listenerPortIndex = tables.Index("port", portKeys, func(l *Listener) Port { return l.Port })

	newListenerTable = tables.Declare("listeners", listenerPodIndex, listenerPortIndex)
)

// portKeys are keys of indexes by a port.
var portKeys = tables.KeysOf(
	func(p Port) index.Key { return index.Uint16(uint16(p)) }, index.Uint16String,
)

// OpenPort is a derived row, and an entry of the map: how many pods have a port open.
type OpenPort struct {
	Port Port
	Pods Pods

	tables.Reconciled `yaml:",inline"`
}

func (*OpenPort) TableHeader() []string { return []string{"Port", "Pods", "Status", "Error"} }
func (p *OpenPort) TableRow() []string {
	return []string{p.Port.String(), p.Pods.String(), p.Status.Kind.String(), p.Status.GetError()}
}

var (
	openPortIndex = tables.UniqueIndex("port", portKeys, func(p *OpenPort) Port { return p.Port })

	newOpenPortTable = tables.Declare("open-ports", openPortIndex)
)

func (p *OpenPort) MapKey() Port   { return p.Port }
func (p *OpenPort) MapValue() Pods { return p.Pods }

// The key and the value of the map, and a row of its mirror.
type (
	Port       uint16
	Pods       uint32
	PortMirror = tables.Mirror[Port, Pods]
)

func (p Port) String() string { return fmt.Sprint(uint16(p)) }
func (p Pods) String() string { return fmt.Sprint(uint32(p)) }

var newPortMirrorTable = tables.NewMirrorTable[Port, Pods]("map-ports", nil)

func derivePorts(
	p derive.Params, listeners statedb.Table[*Listener], ports statedb.RWTable[*OpenPort],
) error {
	equal := func(a, b *OpenPort) bool { return a.Pods == b.Pods }
	return derive.Register(p, derive.Rule[Port]{
		Outputs: []statedb.TableMeta{ports},
		Inputs: []derive.Input[Port]{
			derive.From(listeners,
				func(_ statedb.ReadTxn, l *Listener, mark func(Port)) { mark(l.Port) }),
		},
		Compute: derive.Each(ports, openPortIndex.Query, equal,
			func(in statedb.ReadTxn, port Port) *OpenPort {
				pods := statedb.Collect(listeners.List(in, listenerPortIndex.Query(port)))
				if len(pods) == 0 {
					return nil
				}
				return &OpenPort{Port: port, Pods: Pods(len(pods)), Reconciled: tables.Pending()}
			}),
	})
}

func reconcilePorts(
	p mapsync.Params, ports bpf.Map[Port, Pods],
	desired tables.Desired[*OpenPort], mirror statedb.RWTable[*PortMirror],
) error {
	return mapsync.Register(p, mapsync.Config[*OpenPort, Port, Pods]{
		Map: ports, Desired: desired, Mirror: mirror,
		ByKey:      func(p Port) statedb.Query[*OpenPort] { return openPortIndex.Query(p) },
		WithStatus: tables.WithStatus[OpenPort],
	})
}

// From an observed table to a map: how many pods have each port open. A write
// that fails is seen in the rows, and is made as soon as it can be.
func Example() {
	var (
		memory    = bpf.NewMemory()
		db        *statedb.DB
		listeners statedb.RWTable[*Listener]
		ports     statedb.Table[*OpenPort]
		mirror    statedb.Table[*PortMirror]
	)
	observed := cell.Module("listeners", "Observed",
		tables.Own(newListenerTable),
		cell.Invoke(func(d *statedb.DB, l statedb.RWTable[*Listener]) { db, listeners = d, l }))
	derived := cell.Module("open-ports", "Derived",
		tables.OwnDesired(newOpenPortTable),
		cell.Invoke(derivePorts))
	reconciled := cell.Module("ports-map", "In the kernel",
		tables.Own(newPortMirrorTable),
		cell.ProvidePrivate(func() (bpf.Map[Port, Pods], error) {
			return bpf.Open[Port, Pods](memory, bpf.Spec{Name: "ports", Type: bpf.TypeHash, MaxEntries: 100})
		}),
		cell.Invoke(reconcilePorts))
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, mapsync.Cell,
		cell.Provide(job.Registry.NewGroup, derive.NewMetrics),
		observed, derived, reconciled,
		cell.Invoke(func(p statedb.Table[*OpenPort], m statedb.Table[*PortMirror]) {
			ports, mirror = p, m
		}))
	log := slog.New(slog.DiscardHandler)
	if err := h.Start(log, context.Background()); err != nil {
		panic(err)
	}
	defer h.Stop(log, context.Background())

	open := func(opened ...*Listener) {
		wtxn := db.WriteTxn(listeners)
		for _, l := range opened {
			listeners.Insert(wtxn, l)
		}
		wtxn.Commit()
	}
	await := func(port Port, status reconciler.StatusKind) {
		for {
			txn := db.ReadTxn()
			row, _, watch, found := ports.GetWatch(txn, openPortIndex.Query(port))
			if !found || row.Status.Kind != status {
				<-watch
				continue
			}
			fmt.Println("open-ports", row.TableRow())
			for entry := range mirror.All(txn) {
				fmt.Println("map-ports ", entry.TableRow())
			}
			return
		}
	}

	open(&Listener{"web-1", 80}, &Listener{"web-2", 80}, &Listener{"api", 443})
	await(80, reconciler.StatusKindDone)

	memory.Fail("ports", bpf.OpUpdate, unix.EBUSY, -1)
	open(&Listener{"web-3", 80})
	await(80, reconciler.StatusKindError)

	memory.Fail("ports", bpf.OpAny, nil, 0)
	await(80, reconciler.StatusKindDone)
	// Output:
	// open-ports [80 2 Done ]
	// map-ports  [80 2 - true -]
	// map-ports  [443 1 - true -]
	// open-ports [80 3 Error device or resource busy]
	// map-ports  [80 2 - true -]
	// map-ports  [443 1 - true -]
	// open-ports [80 3 Done ]
	// map-ports  [80 3 - true -]
	// map-ports  [443 1 - true -]
}
