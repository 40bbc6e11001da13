// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
)

// Cell provides what the reconcilers of all maps share: their [Control], which [Register]
// needs, and the table bpf-maps.
var Cell = cell.Module(
	"mapsync",
	"Reconciliation of BPF maps",

	cell.Config(DefaultOptions),
	cell.ProvidePrivate(tables.NewBPFMapTable),
	cell.Provide(
		newControl,
		statedb.RWTable[*tables.BPFMap].ToTable,
		func(maps statedb.RWTable[*tables.BPFMap]) tables.SourceOut {
			return tables.NewSourceOut("maps", maps)
		},
		commands,
	),
)

// Options are the flags of all reconcilers.
type Options struct {
	RetryMin      time.Duration
	RetryMax      time.Duration
	AuditInterval time.Duration
}

// DefaultOptions are the defaults of the flags.
var DefaultOptions = Options{
	RetryMin: 20 * time.Millisecond, RetryMax: 30 * time.Second, AuditInterval: 30 * time.Second,
}

// Flags implements [cell.Flagger].
func (o Options) Flags(flags *pflag.FlagSet) {
	flags.Duration("retry-min", o.RetryMin,
		"Time until a failed write to a map is tried again; it doubles with each attempt")
	flags.Duration("retry-max", o.RetryMax,
		"Most time between attempts to write to a map")
	flags.Duration("audit-interval", o.AuditInterval,
		"Time from one comparison of the maps with what was written to them to the next; they "+
			"take 1% of a core at most; 0 is never")
}

func (o Options) validate() error {
	switch {
	case o.RetryMin <= 0:
		return fmt.Errorf("--retry-min %s is not positive", o.RetryMin)
	case o.RetryMax < o.RetryMin:
		return fmt.Errorf("--retry-max %s is less than --retry-min %s", o.RetryMax, o.RetryMin)
	case o.AuditInterval < 0:
		return fmt.Errorf("--audit-interval %s is negative", o.AuditInterval)
	}
	return nil
}

// retries are the bounds of the delays between attempts.
type retries struct{ min, max time.Duration }

// delay returns how long to wait after a failed attempt, counted from 0.
func (r retries) delay(attempt int) time.Duration {
	if attempt > 62 || r.min > r.max>>attempt {
		return r.max
	}
	return r.min << attempt
}

// Timing is for tests without packets, which need no [Grace].
type Timing struct{ Grace time.Duration }

// Control knows the reconcilers of all maps.
type Control struct {
	grace    time.Duration
	retries  retries
	interval time.Duration
	table    statedb.RWTable[*tables.BPFMap]
	metrics  *metrics
	pace     pace

	tampering *tampering.Recorder

	mu      sync.Mutex
	reports map[string]*report
	shown   map[string]tables.BPFMap // see Show
}

type controlParams struct {
	cell.In

	Options    Options
	Table      statedb.RWTable[*tables.BPFMap]
	Registerer prometheus.Registerer `optional:"true"`
	Timing     *Timing               `optional:"true"`
	Tampering  *tampering.Recorder   `optional:"true"`
}

func newControl(p controlParams) (*Control, error) {
	if err := p.Options.validate(); err != nil {
		return nil, err
	}
	c := &Control{
		grace:    Grace,
		retries:  retries{p.Options.RetryMin, p.Options.RetryMax},
		interval: p.Options.AuditInterval,
		table:    p.Table,
		metrics:  newMetrics(),
		reports:  map[string]*report{},
		shown:    map[string]tables.BPFMap{},

		tampering: p.Tampering,
	}
	if p.Timing != nil {
		c.grace = p.Timing.Grace
	}
	if err := tables.RegisterMetrics(p.Registerer, c.metrics.all()...); err != nil {
		return nil, err
	}
	return c, nil
}

// Grace is how long after a write a packet may still use what was replaced.
func (c *Control) Grace() time.Duration { return c.grace }

// add creates the report of one map.
func (c *Control) add(db *statedb.DB, spec bpf.Spec, flow Flow) (*report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.reports[spec.Name]; ok {
		return nil, errors.New("it has one already")
	}
	wtxn := db.WriteTxn(c.table)
	defer wtxn.Abort()
	r := &report{
		flow:     flow,
		db:       db,
		table:    c.table,
		ready:    c.table.RegisterInitializer(wtxn, spec.Name),
		metrics:  c.metrics.of(spec.Name),
		interval: c.interval,
		audits:   make(chan chan<- auditReply),

		tampering: c.tampering,
	}
	c.tampering.Watch(
		spec.Name, tables.TamperedMissing, tables.TamperedChanged, tables.TamperedForeign,
	)
	wtxn.Commit()
	r.first.Store(unknown)
	c.reports[spec.Name] = r
	return r, nil
}

// unknown is the number of unwritten entries of a map whose desired table is not initialized.
const unknown = -1

// Unwritten returns how many entries are still to be written of those that were desired when the
// desired tables were initialized, and the name of a map that lacks some. known is false if the
// desired table of that map is not initialized.
//
// An entry counts until the map has what is desired under its key at that time, or nothing is
// desired. Entries that are desired later do not count.
func (c *Control) Unwritten() (entries int64, mapName string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.reports)) {
		n := c.reports[name].first.Load()
		if n == unknown {
			return 0, name, false
		}
		if entries += n; n > 0 {
			mapName = name
		}
	}
	return entries, mapName, true
}

// Flow names the tables on both sides of a map.
type Flow struct {
	Map     string
	Desired string // the table of what the map shall hold
	Mirror  string // the table of what the map holds
}

// Flows returns the flow of each map that has a reconciler, in order of the maps.
func (c *Control) Flows() []Flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	var flows []Flow
	for _, name := range slices.Sorted(maps.Keys(c.reports)) {
		flows = append(flows, c.reports[name].flow)
	}
	return flows
}

func (c *Control) find(name string) (*report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.reports[name]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("no reconciler of map %q: there are %v",
		name, slices.Sorted(maps.Keys(c.reports)))
}

// Audit compares the named map with what was written to it, and repairs it. It returns when that is
// done.
func (c *Control) Audit(ctx context.Context, name string) (AuditResult, error) {
	r, err := c.find(name)
	if err != nil {
		return AuditResult{}, err
	}
	reply := make(chan auditReply, 1)
	select {
	case r.audits <- reply:
		select {
		case answer := <-reply:
			return answer.result, answer.err
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	return AuditResult{}, fmt.Errorf("audit map %s: %w", name, ctx.Err())
}

// Counts returns how many entries of the named map were written and deleted since the start.
func (c *Control) Counts(name string) (writes, deletes uint64) {
	r, err := c.find(name)
	if err != nil {
		return 0, 0
	}
	return r.writes.Load(), r.deletes.Load()
}

func commands(c *Control) hive.ScriptCmdOut {
	return hive.NewScriptCmd("map/audit", script.Command(
		script.CmdUsage{
			Summary: "Compare a map with what was written to it, and repair it",
			Args:    "NAME",
		},
		func(s *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, script.ErrUsage
			}
			result, err := c.Audit(s.Context(), args[0])
			if err != nil {
				return nil, err
			}
			return func(*script.State) (stdout, stderr string, err error) {
				return result.String() + "\n", "", nil
			}, nil
		},
	))
}
