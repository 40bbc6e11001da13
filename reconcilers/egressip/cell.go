// SPDX-License-Identifier: Apache-2.0

// Package egressip decides, with other nodes, which node has each egress address that moves, and
// has at this node those that it is given.
//
//	egress-ips, egress-voters ──► votes for other nodes, egress-ip-votes
//	                          └─► egress-voters-taken
//	votes of other nodes ──► egress-ip-leases ──► addresses at devices, ARP, NDP
//	                                          └──► what it has, told to all nodes
//	what other nodes tell ──► egress-ip-owners
//	votes that a node does not take ──► egress-ip-untaken
//
// Some nodes are voters. A voter tells each node again and again for which addresses it votes, and
// votes for one node at a time for an address: before it votes for another one, what it last told
// the former one has run out. A node has an address as long as a majority of the voters votes for
// it. The programs note votes and look at them for each packet, so a node that is cut off, or whose
// agent stands still, is silent before another one has the address; and no API server is asked.
//
// A vote runs out by the clock of the node that got it: see programs/vote.h.
package egressip

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
)

// Cell votes for the owners of egress addresses that move, and keeps those of this node.
var Cell = cell.Module(
	"egress-ips",
	"Egress addresses that move between nodes",

	cell.Config(DefaultConfig),
	tables.Own(tables.NewEgressIPLeaseTable),
	tables.Own(tables.NewEgressIPVoteTable),
	tables.Own(tables.NewEgressIPOwnerTable),
	tables.Own(tables.NewEgressIPUntakenTable),
	tables.Own(tables.NewEgressVotersTakenTable),
	cell.Provide(source),
	cell.Invoke(Config.validate, register),
)

// source says that these tables come from what nodes tell each other.
func source(
	leases statedb.RWTable[*tables.EgressIPLease], votes statedb.RWTable[*tables.EgressIPVote],
	owners statedb.RWTable[*tables.EgressIPOwner], untaken statedb.RWTable[*tables.EgressIPUntaken],
	taken statedb.RWTable[*tables.EgressVotersTaken],
) tables.SourceOut {
	return tables.NewSourceOut("egress-votes", leases, votes, owners, untaken, taken)
}

// Config has the flags of votes.
type Config struct{ EgressIPLease time.Duration }

// DefaultConfig is the configuration without flags. Gateways are lost after about the same time, by
// the default of probes.
var DefaultConfig = Config{EgressIPLease: 225 * time.Millisecond}

const (
	minLease = 100 * time.Millisecond
	maxLease = 10 * time.Second
)

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("egress-ip-lease", c.EgressIPLease,
		"For how long a vote of this node for the owner of an egress address is valid, without "+
			"being repeated; it is repeated ten times as often")
}

func (c Config) validate() error {
	if c.EgressIPLease < minLease || c.EgressIPLease > maxLease {
		return fmt.Errorf("flag --egress-ip-lease: %s: want %s to %s",
			c.EgressIPLease, minLease, maxLease)
	}
	return nil
}

// tick is how often votes are told and looked at.
func (c Config) tick() time.Duration { return c.EgressIPLease / 10 }

// Datapath is what notes votes, once it has started.
type Datapath interface {
	// Loaded reports whether there are programs.
	Loaded() bool
	// Map returns a map of the programs by its name, nil if there is none.
	Map(name string) *ebpf.Map
}

type params struct {
	cell.In

	Config        Config
	Log           *slog.Logger
	DB            *statedb.DB
	Datapath      Datapath
	Enabled       tables.EgressIPs
	IPs           statedb.Table[*tables.EgressIP]
	Voters        statedb.Table[*tables.EgressVoters]
	Leases        statedb.RWTable[*tables.EgressIPLease]
	Votes         statedb.RWTable[*tables.EgressIPVote]
	Owners        statedb.RWTable[*tables.EgressIPOwner]
	Untaken       statedb.RWTable[*tables.EgressIPUntaken]
	Taken         statedb.RWTable[*tables.EgressVotersTaken]
	Nodes         statedb.Table[*tables.Node]
	Addresses     statedb.Table[*tables.NodeAddress]
	Devices       statedb.Table[*tables.Device]
	Exits         statedb.Table[*tables.ExitMirror]
	PortOwners    statedb.Table[*tables.PortOwner]
	Attachments   statedb.Table[*tables.Attachment]
	ConfigEntries statedb.Table[*tables.ConfigMirror]
	Settings      statedb.Table[*tables.DatapathConfig]
	Keys          statedb.Table[*tables.OverlayKeys]
	LocalNode     tables.LocalNode
	Registerer    prometheus.Registerer `optional:"true"`
}

func register(p params, jobs job.Group) error {
	k := newKeeper(p)
	if err := tables.RegisterMetrics(p.Registerer, k.metrics.held, k.metrics.taken); err != nil {
		return err
	}
	wtxn := p.DB.WriteTxn(p.Leases)
	k.initialized = p.Leases.RegisterInitializer(wtxn, "egress-ips")
	wtxn.Commit()
	jobs.Add(job.OneShot("keep-egress-ips", k.run, job.WithShutdown()))
	return nil
}

// metrics are of the addresses that this node has.
type metrics struct {
	held  prometheus.Gauge
	taken prometheus.Counter
}

func newMetrics() metrics {
	return metrics{
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_egress_ips_held", Help: "Egress addresses that move and that this node has.",
		}),
		taken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_egress_ips_taken_total",
			Help: "Times that this node has got an egress address that moves.",
		}),
	}
}

func openSocket(o frames.Overlay) (transport, error) { return frames.Open(o) }
