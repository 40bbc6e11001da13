// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/script"
	"github.com/cilium/hive/script/scripttest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/reconcilers/announce"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/sources"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cnifile"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// The scripts of testdata run the whole agent, with an API server and a kernel
// that are in memory. They are the documentation of what it does.
func TestScripts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	t.Cleanup(cancel) // after the scripts, which run in parallel
	scripttest.Test(t, ctx, newScriptEngine, nil, "../../testdata/*.txtar")
}

func newScriptEngine(t testing.TB, args []string) *script.Engine {
	c := newCluster(t, args)
	cmds := scripttest.DefaultCmds()
	maps.Copy(cmds, c.commands())
	return &script.Engine{
		Cmds:             cmds,
		Conds:            scripttest.DefaultConds(),
		RetryInterval:    10 * time.Millisecond,
		MaxRetryInterval: 100 * time.Millisecond,
	}
}

// cluster is an agent in a cluster that outlives it.
type cluster struct {
	t       testing.TB
	args    []string
	log     *slog.Logger
	api     *kubernetes.FakeAPI
	netlink *netlink.Fake
	memory  *bpf.Memory
	checker *checker
	writer  *fakeWriter
	state   string
	plugin  cniFiles

	hive    *hive.Hive
	agent   map[string]script.Cmd // commands of the agent
	oracle  oracle
	desire  desiredTables
	base    policytest.Tables
	cookies statedb.Table[*tables.RuleCookie]
	work    *derive.Metrics

	attachments statedb.Table[*tables.Attachment]
}

func newCluster(t testing.TB, args []string) *cluster {
	c := &cluster{
		t: t, args: args, log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn)),
		api: kubernetes.NewFakeAPI(), netlink: netlink.NewFake(), memory: bpf.NewMemory(), state: t.TempDir(),
	}
	c.checker, c.writer = newChecker(c.memory), &fakeWriter{api: c.api, status: map[string]any{}}
	c.memory.OnWrite(c.deviceWritten)
	c.construct()
	t.Cleanup(func() { require.NoError(t, c.hive.Stop(c.log, context.Background())) })
	return c
}

// construct makes a new agent in the same cluster.
func (c *cluster) construct() {
	c.hive = New(
		cell.Provide(
			func() *kubernetes.FakeAPI { return c.api },
			func() bpf.Backend { return c.memory },
			func() *mapsync.Timing { return &mapsync.Timing{Grace: testGrace} },
		),
		sources.FakeCell,
		bpf.FaultCell, events.InjectCell,
		netlink.FakeCellOf(c.netlink),
		Dataflow,
		Reporting,
		c.writer.cell(),
		announce.Cell,
		api.ListenCell, api.Cell,
		cell.Invoke(func(o oracle, d desiredTables, a statedb.Table[*tables.Attachment]) {
			c.oracle, c.desire, c.attachments = o, d, a
		}),
		cell.Invoke(func(f cniFiles) { c.plugin = f }),
		cell.Invoke(func(
			b policytest.Tables, t statedb.Table[*tables.RuleCookie], m *derive.Metrics,
		) {
			c.base, c.cookies, c.work = b, t, m
		}),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.hive.RegisterFlags(flags)
	args := append([]string{"--api-listen=", "--socket=" + filepath.Join(c.state, "sluice.sock"), "--state-dir=" + c.state}, c.args...)
	require.NoError(c.t, flags.Parse(args))
	var err error
	c.agent, err = c.hive.ScriptCommands(c.log)
	require.NoError(c.t, err)
}

// commands are those of the agent, forwarded to the one that runs now, and
// those of the harness.
func (c *cluster) commands() map[string]script.Cmd {
	cmds := map[string]script.Cmd{
		"settle": command("Wait until nothing changes any more; compare the maps with what the base tables ask for, and what became of packets in between with the invariants", c.settle),
		"agent/stop": command("Stop the agent; its maps stay", func(ctx context.Context) error {
			return c.hive.Stop(c.log, ctx)
		}),
		"agent/restart": command("Start a new agent with the maps of the one before", func(ctx context.Context) error {
			if err := c.hive.Stop(c.log, ctx); err != nil {
				return err
			}
			c.construct()
			return c.hive.Start(c.log, ctx)
		}),
	}
	cmds["k8s/events"], cmds["k8s/object"] = c.writer.eventsCommand(), c.writer.objectCommand()
	cmds["verdicts"], cmds["routes"] = c.verdicts(), c.routes()
	cmds["agent/flags"] = script.Command(
		script.CmdUsage{Summary: "Construct the agent with more flags, before it is started", Args: "flag..."},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			c.args = append(c.args, args...)
			c.construct()
			return nil, nil
		})
	for name, cmd := range c.agent {
		usage := *cmd.Usage()
		cmds[name] = script.Command(usage, func(s *script.State, args ...string) (script.WaitFunc, error) {
			if name == "map/corrupt" {
				c.checker.disturb()
			}
			return c.agent[name].Run(s, args...)
		})
	}
	return cmds
}

func command(summary string, do func(context.Context) error) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary},
		func(s *script.State, _ ...string) (script.WaitFunc, error) { return nil, do(s.Context()) })
}

// desiredTables are the tables that reconcilers work off.
type desiredTables struct {
	cell.In

	Pods      statedb.Table[*tables.Pod]
	Locals    statedb.Table[*tables.LocalEndpoint]
	Subjects  statedb.Table[*tables.Subject]
	Routes    statedb.Table[*tables.SubjectRoute]
	IPCache   statedb.Table[*tables.IPCache]
	Frontends statedb.Table[*tables.Frontend]
	Members   statedb.Table[*tables.Member]
	Entries   statedb.Table[*tables.PolicyEntry]
	Verdicts  statedb.Table[*tables.Verdict]
	Rules     statedb.Table[*tables.EgressRule]
	Gateways  statedb.Table[*tables.EgressGateway]
	Sysctls   statedb.Table[*tables.Sysctl]
	Exits     statedb.Table[*tables.EgressExit]
	Limits    statedb.Table[*tables.EgressLimit]
	Covered   statedb.Table[*tables.CoveredPrefix]
	Nodes     statedb.Table[*tables.ClusterNode]
	Configs   statedb.Table[*tables.DatapathConfig]
	Slots     statedb.Table[*tables.Slot]

	Rulesets       statedb.Table[*tables.Ruleset]
	Classes        statedb.Table[*tables.Class]
	EgressRulesets statedb.Table[*tables.EgressRuleset]
	Groups         statedb.Table[*tables.EgressGroup]
}

// undone returns rows that are not in the kernel yet, one of each table.
func (d *desiredTables) undone(txn statedb.ReadTxn) string {
	text := ""
	if flipped, _ := d.Slots.Initialized(txn); !flipped {
		text = "the slots have not flipped\n"
	}
	return text + d.dying(txn) + undone(txn, d.Pods) + undone(txn, d.Subjects) + undone(txn, d.Routes) +
		undone(txn, d.IPCache) + undone(txn, d.Members) + undone(txn, d.Entries) +
		undone(txn, d.Verdicts) + undone(txn, d.Rules) + undone(txn, d.Gateways) +
		undone(txn, d.Sysctls) + undone(txn, d.Exits) + undone(txn, d.Covered) +
		undone(txn, d.Limits) +
		undone(txn, d.Nodes) + undone(txn, d.Frontends) + d.undoneConfig(txn)
}

// dying returns objects that nothing desires, and that are not gone yet.
func (d *desiredTables) dying(txn statedb.ReadTxn) string {
	return dying(txn, d.Subjects, tables.SubjectsUndesired) +
		dying(txn, d.Rulesets, tables.RulesetsUndesired) +
		dying(txn, d.Members, tables.MembersUndesired) +
		dying(txn, d.Classes, tables.ClassesUndesired) +
		dying(txn, d.EgressRulesets, tables.EgressRulesetsUndesired) +
		dying(txn, d.Groups, tables.EgressGroupsUndesired)
}

func dying[Row interface{ TableRow() []string }](
	txn statedb.ReadTxn, table statedb.Table[Row], undesired func(bool) statedb.Query[Row],
) string {
	for row := range table.List(txn, undesired(true)) {
		return fmt.Sprintf("%s %v is undesired\n", table.Name(), row.TableRow())
	}
	return ""
}

// undoneConfig is undone for the configuration, which nothing writes while the
// node has no address.
func (d *desiredTables) undoneConfig(txn statedb.ReadTxn) string {
	if c, _, found := d.Configs.Get(txn, tables.DatapathConfigByIndex(0)); found && !c.Underlay.IsValid() {
		return ""
	}
	return undone(txn, d.Configs)
}

func undone[Row interface {
	GetStatus() reconciler.Status
	TableRow() []string
}](txn statedb.ReadTxn, table statedb.Table[Row]) string {
	if initialized, _ := table.Initialized(txn); !initialized {
		return table.Name() + " is not initialized: " + fmt.Sprintln(table.PendingInitializers(txn))
	}
	for row := range table.All(txn) {
		if row.GetStatus().Kind != reconciler.StatusKindDone {
			return fmt.Sprintf("%s %v\n", table.Name(), row.TableRow())
		}
	}
	return ""
}

// testGrace is the grace period, as no packets are under way.
const testGrace = 5 * time.Millisecond

const (
	// For how long nothing may change: so often it is looked. What counts is the
	// looks, as a process that was not scheduled has had the time but not the turn.
	settled      = 12
	settledPause = 2 * time.Millisecond
	// The same before what is wrong counts as wrong: a busy machine may be slow to
	// take in what has happened.
	surelySettled = 500

	settleTimeout = 20 * time.Second
)

// settle waits until nothing changes any more, and checks what came of it.
func (c *cluster) settle(ctx context.Context) error {
	err := c.agrees(ctx)
	return errors.Join(c.checker.rest(c.oracle.owners(c.oracle.DB.ReadTxn())), err)
}

// agrees waits until nothing changes any more, and compares.
func (c *cluster) agrees(ctx context.Context) error {
	if err := c.quietFor(ctx, settled); err != nil || c.compare() == nil {
		return err
	}
	if err := c.quietFor(ctx, surelySettled); err != nil {
		return err
	}
	return c.compare()
}

// revision changes whenever a table does, or a map.
func (c *cluster) revision(txn statedb.ReadTxn) uint64 {
	revision := c.memory.Sequence()
	for _, table := range c.oracle.DB.GetTables(txn) {
		if name := table.Name(); name != "health" && name != "bpf-maps" {
			revision += table.Revision(txn)
		}
	}
	return revision
}

// quiet waits until no table has changed for a while and every row is done.
func (c *cluster) quiet(ctx context.Context) error { return c.quietFor(ctx, settled) }

func (c *cluster) quietFor(ctx context.Context, looks int) error {
	deadline := time.Now().Add(settleTimeout)
	var last uint64
	same := 0
	for {
		txn := c.oracle.DB.ReadTxn()
		c.watch(txn)
		revision := c.revision(txn)
		undone := c.pending() + c.desire.undone(txn)
		same++
		switch {
		case revision != last:
			last, same = revision, 0
		case undone == "" && same > looks:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("not settled after %s: %s", settleTimeout, undone)
		case ctx.Err() != nil:
			return ctx.Err()
		}
		time.Sleep(settledPause)
	}
}

// pending says what the agent has not heard of, or not written: the tables may be quiet
// before it begins to.
func (c *cluster) pending() (text string) {
	if resource := c.api.Pending(); resource != "" {
		text = "events of " + resource + " are not taken in\n"
	}
	if c.netlink.Pending() {
		text += "the network is not taken in\n"
	}
	return text + c.plugin.pending()
}

// cniFiles are what the CNI plugin tells, and what the agent has read of it.
type cniFiles struct {
	cell.In

	DB     *statedb.DB
	Config tables.CNIPlugin
	Rows   statedb.Table[*tables.CNIAttachment]
}

func (f *cniFiles) pending() string {
	if !f.Config.Enabled {
		return ""
	}
	txn := f.DB.ReadTxn()
	names, err := cnifile.List(f.Config.RunDir)
	if err != nil || len(names) != f.Rows.NumObjects(txn) {
		return "what the CNI plugin tells is not taken in\n"
	}
	for _, name := range names {
		row, _, found := f.Rows.Get(txn, tables.CNIAttachmentByFile(name))
		if a, err := cnifile.Read(f.Config.RunDir, name); !found || err == nil && (a.IfIndex != row.IfIndex || a.UID != row.UID) {
			return "what the CNI plugin tells is not taken in\n"
		}
	}
	return ""
}

// watch has the checker look at the packets of interest from now on.
func (c *cluster) watch(txn statedb.ReadTxn) {
	sources, destinations := c.oracle.probes(txn)
	c.memory.Read(func(r bpf.Reader) { c.checker.watch(sources, destinations, r) })
}

// compare says where the maps lead to other decisions than the base tables.
func (c *cluster) compare() (err error) {
	txn := c.oracle.DB.ReadTxn()
	sources, destinations := c.oracle.probes(txn)
	c.memory.Read(func(r bpf.Reader) {
		for _, dst := range append(destinations, sources...) {
			if want, got := c.oracle.inCluster(txn, dst), inClusterByKernel(r, dst); want != got {
				err = errors.Join(err, fmt.Errorf("%s in the cluster: by the maps %v, by the base tables %v", dst, got, want))
			}
		}
		for _, src := range sources {
			for _, dst := range destinations {
				if src.BitLen() != dst.BitLen() {
					continue
				}
				got, kernelErr := inKernel(r, src, dst, true)
				if want := c.oracle.decision(txn, src, dst); kernelErr != nil || got != want {
					err = errors.Join(err, kernelErr, fmt.Errorf("%s to %s: by the maps %s, by the base tables %s", src, dst, got, want))
				}
			}
		}
	})
	c.memory.Read(func(r bpf.Reader) { err = errors.Join(err, c.compareForwarding(txn, r, destinations)) })
	return errors.Join(err, c.comparePolicies(txn))
}
