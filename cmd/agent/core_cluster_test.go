// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	corereconcilers "github.com/sluice-net/sluice/reconcilers/core"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/sources"
	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/core"
	"github.com/sluice-net/sluice/tables/localpods"
	"github.com/sluice-net/sluice/tables/members"
	"github.com/sluice-net/sluice/tables/policy/policytest"
	"github.com/sluice-net/sluice/tables/subjects"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// coreCluster has the core of rulesets, from objects to maps in memory.
type coreCluster struct {
	*policytest.Generator
	t        *testing.T
	args     []string
	api      *kubernetes.FakeAPI
	netlink  *netlink.Fake
	memory   *bpf.Memory
	hive     *hive.Hive
	base     policytest.Tables
	policies *policyChecker
	cluster  cluster // for what the flags say
}

func newCoreCluster(t *testing.T, seed uint64) *coreCluster {
	random := policytest.NewGenerator(seed)
	c := &coreCluster{
		Generator: random, t: t,
		args: append(
			[]string{"--node-name=" + policytest.LocalNode, "--retry-min=2ms", "--retry-max=20ms"},
			policyFlags(random)...),
		api: kubernetes.NewFakeAPI(), netlink: netlink.NewFake(), memory: bpf.NewMemory(),
	}
	c.cluster.args = c.args
	hostAllowed := c.cluster.policyOptions().HostAllowed
	c.policies = watchPolicies(c.memory, &policyChecker{
		verdict: func(r bpf.Reader, p policytest.Packet) string { return coreVerdict(r, p, hostAllowed) },
		concerned: func(bpf.Write, bpf.Reader, netip.Addr) func(policytest.Packet) bool {
			return func(policytest.Packet) bool { return true }
		},
	})
	network, err := netlink.ParseState([]byte(policyNetwork))
	require.NoError(t, err)
	c.netlink.Set(network)
	c.construct()
	return c
}

func (c *coreCluster) construct() {
	c.hive = New(
		cell.Provide(
			func() *kubernetes.FakeAPI { return c.api },
			func() (corereconcilers.Maps, error) { return coreMaps(c.memory) },
		),
		sources.FakeCell,
		netlink.FakeCellOf(c.netlink),
		localpods.Cell, subjects.Cell, members.Cell, verdicts.Cell,
		mapsync.Cell, corereconcilers.Cell,
		cell.Provide(
			func() corereconcilers.Verdicts {
				return corereconcilers.Verdicts{Raise: func() {}, Flush: func([]netip.Addr) {}}
			},
			newDeriveMetrics, tables.NewEgressGatewayTable, tables.NewDesired[*tables.EgressGateway],
			tables.NewAttachmentTable, statedb.RWTable[*tables.Attachment].ToTable,
		),
		cell.Invoke(func(b policytest.Tables) { c.base = b }),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true // of what is not part of the core
	c.hive.RegisterFlags(flags)
	require.NoError(c.t, flags.Parse(c.args))
}

// coreMaps are the maps of the core in memory.
func coreMaps(m *bpf.Memory) (maps corereconcilers.Maps, err error) {
	return corereconcilers.Maps{
		Pods:    openMemory[bpf.PodKey, core.PodValue](m, "sluice_pods", bpf.TypeHash, &err),
		IPCache: openMemory[bpf.IPCacheKey, core.IPCacheValue](m, "sluice_ipcache", bpf.TypeLPM, &err),
		Subjects: openMemory[core.SubjectKey, core.SubjectValue](
			m,
			"sluice_subjects",
			bpf.TypeHash,
			&err,
		),
		Routes:   openMemory[core.SubjectKey, core.RouteValue](m, "sluice_routes", bpf.TypeHash, &err),
		Peers:    openMemory[core.PeerKey, core.PeerValue](m, "sluice_peers", bpf.TypeHash, &err),
		Policy:   openMemory[core.PolicyKey, core.PolicyValue](m, "sluice_policy", bpf.TypeHash, &err),
		Verdicts: openMemory[core.VerdictKey, core.VerdictValue](m, "sluice_verdicts", bpf.TypeLPM, &err),
		Egress:   openMemory[core.EgressKey, bpf.EgressValue](m, "sluice_egress", bpf.TypeLPM, &err),
		Gateways: openMemory[bpf.GatewayKey, bpf.GatewayValue](m, "sluice_gateways", bpf.TypeHash, &err),
	}, err
}

func openMemory[K, V comparable](m *bpf.Memory, name string, t bpf.Type, err *error) bpf.Map[K, V] {
	opened, failed := bpf.Open[K, V](m, bpf.Spec{Name: name, Type: t, MaxEntries: 1 << 16})
	*err = errors.Join(*err, failed)
	return opened
}

// coreVerdict is what the maps make of a packet, in the order of the programs' lookups.
func coreVerdict(r bpf.Reader, p policytest.Packet, hostAllowed bool) string {
	pod, found := bpf.Get[bpf.PodKey, core.PodValue](
		r,
		"sluice_pods",
		bpf.PodKey{Addr: bpf.AddressFrom(p.Subject)},
	)
	if !found || pod.Flags&core.PodLocal == 0 {
		return notHere
	}
	known, _ := bpf.Match[bpf.IPCacheKey, core.IPCacheValue](r, "sluice_ipcache",
		bpf.IPCacheKeyFrom(netip.PrefixFrom(p.Peer, p.Peer.BitLen())))
	if hostAllowed && p.Direction == bpf.DirectionIngress && known.Value.Flags&bpf.IPCacheHost != 0 {
		return allowed
	}
	if pod.Subject == 0 {
		return heldNew
	}
	subject, found := bpf.Get[core.SubjectKey, core.SubjectValue](
		r,
		"sluice_subjects",
		core.SubjectKey{Subject: pod.Subject},
	)
	if !found {
		return noMatch
	}
	if subject.Ruleset == core.EmptyRuleset {
		return allowed
	}
	peer, found := bpf.Get[core.PeerKey, core.PeerValue](
		r,
		"sluice_peers",
		core.PeerKey{Member: known.Value.Member},
	)
	if !found {
		return noMatch
	}
	key := core.PolicyKey{Ruleset: subject.Ruleset, Class: peer.Class, Direction: p.Direction}
	entry, found := bpf.Get[core.PolicyKey, core.PolicyValue](r, "sluice_policy", key)
	if !found {
		key.Class = core.AnyClass
		if entry, found = bpf.Get[core.PolicyKey, core.PolicyValue](r, "sluice_policy", key); !found {
			return noMatch
		}
	}
	verdict, found := bpf.Match[core.VerdictKey, core.VerdictValue](r, "sluice_verdicts",
		core.VerdictKeyOf(entry.Set, p.Protocol, p.Port, 16))
	switch {
	case !found:
		return noMatch
	case verdict.Value.Deny != 0:
		return denied
	}
	return allowed
}

func (c *coreCluster) world() *policytest.World {
	return c.base.World(c.base.DB.ReadTxn(), c.cluster.policyOptions())
}

// rest waits until nothing changes any more, and compares.
func (c *coreCluster) rest(ctx context.Context) error {
	if err := c.quiet(ctx, time.Now().Add(settleTimeout)); err != nil {
		return err
	}
	return errors.Join(c.compare(), c.policies.rest(c.world()))
}

// quiet waits until neither tables nor maps have changed for longer than a grace period.
func (c *coreCluster) quiet(ctx context.Context, deadline time.Time) error {
	var last uint64
	for same := time.Now(); time.Since(same) < 2*mapsync.Grace; time.Sleep(settledPause) {
		txn := c.base.DB.ReadTxn()
		now := c.memory.Sequence()
		for _, table := range c.base.DB.GetTables(txn) {
			if name := table.Name(); name != "health" && name != "bpf-maps" {
				now += table.Revision(txn)
			}
		}
		switch {
		case now != last || c.api.Pending() != "" || c.netlink.Pending():
			last, same = now, time.Now()
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not at rest after %s: %s changes", settleTimeout, c.restless())
		}
	}
	return nil
}

// restless returns the tables that change.
func (c *coreCluster) restless() (names []string) {
	before := c.base.DB.ReadTxn()
	time.Sleep(time.Second)
	now := c.base.DB.ReadTxn()
	for _, table := range c.base.DB.GetTables(now) {
		if changes := table.Revision(now) - table.Revision(before); changes > 0 {
			names = append(names, fmt.Sprintf("%s (%d)", table.Name(), changes))
		}
	}
	return append(names, c.api.Pending())
}

// compare says where the maps make something else of packets than the policies do.
func (c *coreCluster) compare() (err error) {
	w := c.world()
	packets := w.Packets(
		rand.New(rand.NewPCG(uint64(len(w.Policies)), uint64(len(w.Endpoints)))),
		comparedPackets,
	)
	c.memory.Read(func(r bpf.Reader) {
		for _, p := range packets {
			want, why := w.Verdict(p)
			text := verdictText(want)
			if !want && w.IsHeld(p.Subject) {
				text = heldNew
			}
			if got := coreVerdict(r, p, w.HostAllowed); got != text {
				err = errors.Join(
					err,
					fmt.Errorf("%s: by the maps %s, by the policies %s, %s", p, got, text, why),
				)
			}
		}
	})
	return err
}

func (c *coreCluster) look() {
	w := c.world()
	packets := w.Packets(rand.New(rand.NewPCG(c.Uint64(), 0)), 200)
	c.memory.Read(func(r bpf.Reader) { c.policies.watch(packets, w, r) })
}

func (c *coreCluster) start() {
	for _, manifest := range c.World(14, 8) {
		require.NoError(c.t, c.api.Apply([]byte(manifest)))
	}
	require.NoError(c.t, c.api.Sync())
	log := hivetest.Logger(c.t)
	require.NoError(c.t, c.hive.Start(log, c.t.Context()))
	c.t.Cleanup(func() { require.NoError(c.t, c.hive.Stop(log, context.Background())) })
	require.NoError(c.t, c.rest(c.t.Context()), "the beginning, with %s", c.args)
	c.look()
}

func (c *coreCluster) change() policytest.Change {
	change := c.Change()
	do := c.api.Apply
	if change.Delete {
		do = c.api.Delete
	}
	if err := do([]byte(change.Manifest)); err != nil && !strings.Contains(err.Error(), "not found") {
		c.t.Errorf("%s: %v", change, err)
	}
	return change
}

// Event by event, the maps make of packets what the policies ask for, and a verdict changes
// once at most, to that of after the event.
func TestCoreEvents(t *testing.T) {
	for seed := range randomSeeds(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			c := newCoreCluster(t, seed)
			c.start()
			for i := range 40 {
				change := c.change()
				require.NoError(t, c.rest(t.Context()), "event %d: %s", i, change)
				if c.IntN(4) == 0 {
					c.look()
				}
			}
		})
	}
}

// Many events at once, with writes that fail. When these stop, the maps make of packets what
// the policies ask for, with no new event; and no packet ever meets an object that is not
// complete.
func TestCoreStorms(t *testing.T) {
	for seed := range randomSeeds(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			c := newCoreCluster(t, 1000+seed)
			c.start()
			for i := range 8 {
				random := rand.New(rand.NewPCG(c.Uint64(), 0))
				c.memory.Inject(func(string, bpf.Op) error {
					if random.IntN(5) == 0 {
						return errFault
					}
					return nil
				})
				var storm []string
				for range 1 + c.IntN(6) {
					storm = append(storm, c.change().String())
				}
				time.Sleep(20 * settledPause)
				c.memory.Inject(nil)
				require.NoError(t, c.quiet(t.Context(), time.Now().Add(settleTimeout)))
				require.NoError(t, c.compare(), "storm %d: %s", i, storm)
				require.NoError(t, c.policies.withoutVerdicts(), "storm %d: %s", i, storm)
				c.look()
			}
		})
	}
}
