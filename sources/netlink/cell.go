// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/sluice-net/sluice/tables"
)

// resyncInterval is how often everything is listed in case a change was missed.
type resyncInterval time.Duration

// Cell owns the tables and reflects the kernel to them: the network namespace
// of the process, or the one of a netns.NsHandle if something provides that.
var Cell = module(cell.ProvidePrivate(newSocketKernel))

// FakeCell is [Cell] with a [Fake] in place of the kernel, which it provides
// together with script commands to set it.
var FakeCell = module(cell.Provide(NewFake), fakeKernel)

// FakeCellOf is [FakeCell] with a given fake, which may outlive the hive as the
// kernel outlives the agent.
func FakeCellOf(fake *Fake) cell.Cell {
	return module(cell.Provide(func() *Fake { return fake }), fakeKernel)
}

var fakeKernel = cell.Group(
	cell.ProvidePrivate(func(f *Fake) kernel { return f }),
	cell.Provide(fakeCommands),
)

// tableCells construct the tables and let others read them.
var tableCells = cell.Group(
	tables.Own(tables.NewDeviceTable),
	tables.Own(tables.NewNodeAddressTable),
	tables.Own(tables.NewRouteTable),
	tables.Own(tables.NewNeighbourTable),
	tables.Own(tables.NewBridgeEntryTable),
	cell.ProvidePrivate(
		newStore,
	),
	cell.Provide(
		source,
	),
)

func source(p storeParams) tables.SourceOut {
	return tables.NewSourceOut("netlink", p.Devices, p.Addresses, p.Routes, p.Neighbours, p.BridgeEntries)
}

func module(kernel ...cell.Cell) cell.Cell {
	return cell.Module(
		"netlink",
		"Devices addresses routes and neighbours",

		tableCells,
		cell.Group(kernel...),
		cell.ProvidePrivate(func() resyncInterval { return resyncInterval(5 * time.Minute) }),
		cell.Invoke(register),
	)
}

func register(log *slog.Logger, jobs job.Group, k kernel, s *store, resync resyncInterval) {
	r := &reflector{log: log, kernel: k, store: s, resync: time.Duration(resync)}
	jobs.Add(job.OneShot("reflect-netlink", r.run))
}
