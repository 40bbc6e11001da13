// SPDX-License-Identifier: Apache-2.0

// Package egressip has the egress addresses that move at this node while it shall have them, and
// has their leases.
//
//	egress-ips ──► claims ──► Lease of the address ──► egress-ip-leases ──► sluice_floating
//	                 └──► address at the device, ARP and neighbor discovery
//
// A node has an address only while it has its Lease, which one node has at a time, and renews it
// all the time. Each renewal puts off the deadline in the kernel, by less than the Lease is valid
// for: a node that cannot renew it is silent before another one may take it. The address is given
// to the device after the programs that look at the deadline run there, and the Lease is given
// back after the address is gone.
package egressip

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// Cell keeps egress addresses that move.
var Cell = cell.Module(
	"egress-ips",
	"Egress addresses that move between nodes",

	cell.Config(DefaultConfig),
	tables.Own(tables.NewEgressIPLeaseTable),
	tables.Own(tables.NewFloatingMirrorTable),
	cell.Provide(func(t statedb.RWTable[*tables.EgressIPLease]) tables.SourceOut {
		return tables.NewSourceOut("egress-ip-claims", t)
	}),
	cell.Invoke(Config.validate, register, registerMap),
)

// Config has the flags of leases.
type Config struct{ EgressIPLease time.Duration }

// DefaultConfig is the configuration without flags: less than it takes a node to be not ready.
var DefaultConfig = Config{EgressIPLease: 20 * time.Second}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("egress-ip-lease", c.EgressIPLease,
		"How long the lease of an egress address that moves is valid without being renewed")
}

func (c Config) validate() error {
	if c.EgressIPLease < 10*time.Second || c.EgressIPLease > 5*time.Minute ||
		c.EgressIPLease%time.Second != 0 {
		return fmt.Errorf("--egress-ip-lease %s is out of bounds: want 10s to 5m, in whole seconds",
			c.EgressIPLease)
	}
	return nil
}

// valid is for how long this node uses a lease, and renewal how often it renews it. The rest is
// for packets that are on their way, and for clocks that do not run alike.
func (c Config) valid() time.Duration   { return c.EgressIPLease * 3 / 4 }
func (c Config) renewal() time.Duration { return c.EgressIPLease / 5 }

// lookAtLease is how often a node that is to have an address looks whether the former owner has
// given the lease back.
const lookAtLease = 500 * time.Millisecond

// Connection is where Leases are; without a client nothing is claimed.
type Connection struct {
	Leases    coordinationv1.LeasesGetter
	Namespace string
}

type params struct {
	cell.In

	Connection    Connection `optional:"true"`
	Config        Config
	DB            *statedb.DB
	Enabled       tables.EgressIPs
	Maps          *bpf.Maps
	IPs           statedb.Table[*tables.EgressIP]
	Rows          statedb.RWTable[*tables.EgressIPLease]
	Devices       statedb.Table[*tables.Device]
	Exits         statedb.Table[*tables.ExitMirror]
	Attachments   statedb.Table[*tables.Attachment]
	ConfigEntries statedb.Table[*tables.ConfigMirror]
	LocalNode     tables.LocalNode
	BGP           tables.EgressBGP
	BGPRoutes     statedb.Table[*tables.EgressBGPRoute]
}

func register(p params, jobs job.Group) {
	wtxn := p.DB.WriteTxn(p.Rows)
	initialized := p.Rows.RegisterInitializer(wtxn, "egress-ips")
	wtxn.Commit()
	k := &keeper{
		params: p, initialized: initialized, claims: map[netip.Addr]*claim{},
		problems: map[netip.Addr]error{},
	}
	jobs.Add(job.OneShot("keep-egress-ips", k.run, job.WithShutdown()))
}

func registerMap(
	p mapsync.Params, maps *bpf.Maps, rows statedb.RWTable[*tables.EgressIPLease],
	mirror statedb.RWTable[*tables.FloatingMirror],
) error {
	return mapsync.Register(p,
		mapsync.Config[*tables.EgressIPLease, bpf.ExitKey, bpf.FloatingValue]{
			Map: maps.Floating, Desired: tables.NewDesired(rows), Mirror: mirror,
			WithStatus: tables.WithStatus[tables.EgressIPLease],
			ByKey: func(k bpf.ExitKey) statedb.Query[*tables.EgressIPLease] {
				return tables.EgressIPLeaseByAddr(k.Addr.Addr())
			},
		})
}
