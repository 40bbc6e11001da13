// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// kind is a kind of numbered objects.
type kind int

const (
	aSet kind = iota
	aRuleset
	aClass
	aMember
	aSubject
	anEgressRuleset
	aGroup
	kinds
)

// derivation makes random desired rows as the rules would: objects are complete in the
// transaction that makes them, never change, and live until a transaction after they were
// marked finds no reference to them in the mirrors.
type derivation struct {
	*world
	rnd  *rand.Rand
	next uint32
	made uint64
	txn  statedb.WriteTxn

	marked    [kinds]map[uint32]bool // of all objects: is not desired
	pods      map[netip.Addr]uint32
	addresses map[netip.Prefix]uint32
	classOf   map[uint32]uint32    // of members
	roles     map[uint32][2]uint32 // of subjects: ruleset, egress ruleset or 0
	entries   map[bpf.PolicyKey]uint32
	rules     map[tables.EgressRuleKey]uint32

	lock   sync.Mutex
	size   map[uint32]int                         // entries of verdict sets and egress rulesets
	speaks map[[2]uint32]map[bpf.PolicyKey]uint32 // what a ruleset says specially of a class
}

func newDerivation(t testing.TB, seed uint64) *derivation {
	d := &derivation{
		next:  bpf.EmptyRuleset,
		world: newWorld(t, true), rnd: rand.New(rand.NewPCG(seed, 1)),
		pods: map[netip.Addr]uint32{}, addresses: map[netip.Prefix]uint32{}, classOf: map[uint32]uint32{},
		roles: map[uint32][2]uint32{}, entries: map[bpf.PolicyKey]uint32{},
		rules: map[tables.EgressRuleKey]uint32{},
		size:  map[uint32]int{}, speaks: map[[2]uint32]map[bpf.PolicyKey]uint32{},
	}
	for k := range d.marked {
		d.marked[k] = map[uint32]bool{}
	}
	return d
}

func put[R any](d *derivation, table statedb.RWTable[R], row R) {
	setPending(row)
	_, _, err := table.Insert(d.txn, row)
	require.NoError(d.t, err)
}

func drop[R any](d *derivation, table statedb.RWTable[R], row R) {
	_, _, err := table.Delete(d.txn, row)
	require.NoError(d.t, err)
}

// object returns a desired object of a kind, or makes one.
func (d *derivation) object(k kind) uint32 {
	var live []uint32
	for _, n := range slices.Sorted(maps.Keys(d.marked[k])) {
		if !d.marked[k][n] {
			live = append(live, n)
		}
	}
	if len(live) > 0 && (len(live) > 4 || d.rnd.IntN(3) > 0) {
		return live[d.rnd.IntN(len(live))]
	}
	if k == aGroup && len(live) > 0 {
		return live[0]
	}
	d.next++
	n := d.next
	switch k {
	case aSet:
		put(d, d.verdictSets, &tables.VerdictSet{Number: n, Digest: digest(n)})
		ports := 1 + d.rnd.IntN(3)
		for port := range ports {
			put(d, d.Verdicts.RWTable, &tables.Verdict{
				Key: bpf.VerdictKeyOf(n, 6, uint16(port), 16),
			})
		}
		d.remember(n, ports)
	case aRuleset:
		put(d, d.rulesets, &tables.Ruleset{Life: life(n), Digest: digest(n)})
		for _, class := range append(slices.Sorted(maps.Keys(d.marked[aClass])), bpf.AnyClass) {
			d.speak(n, class)
		}
		put(d, d.compiled, &tables.Compiled{Role: tables.CompiledRuleset, Number: n})
	case aClass:
		for _, ruleset := range slices.Sorted(maps.Keys(d.marked[aRuleset])) {
			d.speak(ruleset, n)
		}
		put(d, d.compiled, &tables.Compiled{Role: tables.CompiledClass, Number: n})
	case aMember:
		d.marked[k][n] = false
		d.setClass(n, d.object(aClass))
	case aSubject:
		d.marked[k][n] = false
		d.setRoles(n)
	case anEgressRuleset:
		put(d, d.egressRulesets, &tables.EgressRuleset{Life: life(n), Digest: digest(n)})
		prefixes := 1 + d.rnd.IntN(3)
		for i := range prefixes {
			key := tables.EgressRuleKey{
				Ruleset: n, Destination: netip.PrefixFrom(addr("192.0.2.0"), 24+i),
			}
			if d.rules[key] = bpf.GroupExcluded; d.rnd.IntN(2) == 0 {
				d.rules[key] = d.object(aGroup)
			}
			put(d, d.EgressRules.RWTable,
				&tables.EgressRule{Ruleset: n, Destination: key.Destination, Group: d.rules[key]})
		}
		d.remember(n, prefixes)
	case aGroup:
		for bucket := range uint32(bpf.GatewayBuckets) {
			put(d, d.Gateways.RWTable, d.bucket(n, bucket))
		}
	}
	d.marked[k][n] = false
	return n
}

func digest(n uint32) bpf.Digest { return bpf.Digest{byte(n), byte(n >> 8)} }

func (d *derivation) bucket(group, n uint32) *tables.EgressGateway {
	return &tables.EgressGateway{
		GatewayKey: bpf.GatewayKey{Group: group, Bucket: n},
		Addr:       addr("10.9.0.1"),
		Reconciled: tables.Pending(),
	}
}

func (d *derivation) remember(n uint32, size int) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.size[n] = size
}

// speak has a ruleset say something of a class, or not.
func (d *derivation) speak(ruleset, class uint32) {
	said := map[bpf.PolicyKey]uint32{}
	for _, direction := range []bpf.Direction{0, 1} {
		if class != bpf.AnyClass && d.rnd.IntN(2) == 0 {
			continue
		}
		key := bpf.PolicyKey{Ruleset: ruleset, Class: class, Direction: direction}
		said[key] = d.object(aSet)
		d.entries[key] = said[key]
		put(d, d.PolicyEntries.RWTable, &tables.PolicyEntry{
			Ruleset: ruleset, Class: class, Direction: direction, Set: said[key],
		})
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.speaks[[2]uint32{ruleset, class}] = said
}

func (d *derivation) setClass(member, class uint32) {
	d.classOf[member] = class
	put(d, d.Members.RWTable,
		&tables.Member{Life: life(member), Digest: digest(member), Class: class, Made: d.made})
}

func (d *derivation) setRoles(subject uint32) {
	roles := [2]uint32{d.object(aRuleset)}
	put(d, d.Subjects.RWTable, &tables.Subject{Life: life(subject), Ruleset: roles[0]})
	if d.rnd.IntN(2) == 0 {
		roles[1] = d.object(anEgressRuleset)
		put(d, d.Routes.RWTable, &tables.SubjectRoute{Subject: subject, EgressRuleset: roles[1]})
	} else if d.roles[subject][1] != 0 {
		drop(d, d.Routes.RWTable, &tables.SubjectRoute{Subject: subject})
	}
	d.roles[subject] = roles
}

// step makes some changes, and collects garbage.
func (d *derivation) step(changes int) {
	mirrors := d.DB.ReadTxn()
	d.txn = d.DB.WriteTxn(d.Pods, d.IPCache, d.Subjects, d.Routes, d.Members, d.PolicyEntries,
		d.Verdicts, d.EgressRules, d.Gateways,
		d.rulesets, d.egressRulesets, d.verdictSets, d.compiled)
	defer d.txn.Abort()
	d.made++
	for range changes {
		switch d.rnd.IntN(10) {
		case 0, 1, 2:
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(d.rnd.IntN(6))})
			if d.rnd.IntN(3) == 0 {
				delete(d.pods, a)
				drop(d, d.Pods.RWTable, &tables.Pod{Addr: a})
				continue
			}
			d.pods[a] = d.object(aSubject)
			put(d, d.Pods.RWTable, &tables.Pod{Addr: a, Subject: d.pods[a]})
		case 3, 4, 5, 6:
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(d.rnd.IntN(2)), byte(d.rnd.IntN(3))}), 8*(1+d.rnd.IntN(4))).
				Masked()
			row := &tables.IPCache{Prefix: p, Made: d.made}
			if d.rnd.IntN(3) == 0 {
				delete(d.addresses, p)
				drop(d, d.IPCache.RWTable, row)
				continue
			}
			d.addresses[p] = d.object(aMember)
			row.Member = d.addresses[p]
			put(d, d.IPCache.RWTable, row)
		case 7, 8:
			d.setClass(d.object(aMember), d.object(aClass))
		case 9:
			d.setRoles(d.object(aSubject))
		}
	}
	d.collect(mirrors)
	d.txn.Commit()
}

// collect marks what is not desired any more, and deletes what was marked in a former
// transaction and is not referred to in the mirrors.
func (d *derivation) collect(mirrors statedb.ReadTxn) {
	var desired [kinds]map[uint32]bool
	desired[aSubject], desired[aMember] = values(d.pods), values(d.addresses)
	desired[aClass], desired[aSet] = values(d.classOf), values(d.entries)
	desired[aGroup] = values(d.rules)
	desired[aRuleset], desired[anEgressRuleset] = map[uint32]bool{}, map[uint32]bool{}
	for _, roles := range d.roles {
		desired[aRuleset][roles[0]], desired[anEgressRuleset][roles[1]] = true, true
	}
	for k := range kinds {
		for _, n := range slices.Sorted(maps.Keys(d.marked[k])) {
			if !desired[k][n] && d.marked[k][n] && !d.isReferred(mirrors, k, n) {
				d.delete(k, n)
				delete(d.marked[k], n)
				continue
			}
			d.marked[k][n] = !desired[k][n]
		}
	}
}

func (d *derivation) delete(k kind, n uint32) {
	switch k {
	case aSet:
		drop(d, d.verdictSets, &tables.VerdictSet{Number: n})
		for port := range uint16(3) {
			drop(d, d.Verdicts.RWTable, &tables.Verdict{Key: bpf.VerdictKeyOf(n, 6, port, 16)})
		}
	case aRuleset, aClass:
		for key := range d.entries {
			if k == aRuleset && key.Ruleset == n || k == aClass && key.Class == n {
				delete(d.entries, key)
				drop(d, d.PolicyEntries.RWTable, &tables.PolicyEntry{
					Ruleset: key.Ruleset, Class: key.Class, Direction: key.Direction,
				})
			}
		}
		role := tables.CompiledClass
		if k == aRuleset {
			role = tables.CompiledRuleset
			drop(d, d.rulesets, &tables.Ruleset{Life: life(n)})
		}
		drop(d, d.compiled, &tables.Compiled{Role: role, Number: n})
	case aMember:
		delete(d.classOf, n)
		drop(d, d.Members.RWTable, &tables.Member{Life: life(n)})
	case aSubject:
		delete(d.roles, n)
		drop(d, d.Subjects.RWTable, &tables.Subject{Life: life(n)})
		drop(d, d.Routes.RWTable, &tables.SubjectRoute{Subject: n})
	case anEgressRuleset:
		drop(d, d.egressRulesets, &tables.EgressRuleset{Life: life(n)})
		for key := range d.rules {
			if key.Ruleset == n {
				delete(d.rules, key)
				drop(d, d.EgressRules.RWTable, &tables.EgressRule{
					Ruleset: n, Destination: key.Destination,
				})
			}
		}
	case aGroup:
		for bucket := range uint32(bpf.GatewayBuckets) {
			drop(d, d.Gateways.RWTable, d.bucket(n, bucket))
		}
	}
}

// After every write to any map, while writes fail and maps are full at times, everything
// that an entry refers to is complete in the kernel, and the mirrors tell of all that the
// kernel has. When the faults stop, the kernel gets what is desired, and no garbage stays.
func TestRandom(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomRun(t, seed)
		})
	}
}

func randomRun(t *testing.T, seed uint64) {
	d := newDerivation(t, seed)
	var wrong []string
	d.memory.OnWrite(func(w bpf.Write, r bpf.Reader) {
		if len(wrong) > 0 {
			return
		}
		txn := d.DB.ReadTxn()
		for _, what := range []string{
			d.check(r),
			unmirrored(txn, r, "sluice_pods", d.PodMirror), unmirrored(txn, r, "sluice_ipcache", d.IPCacheMirror),
			unmirrored(txn, r, "sluice_subjects", d.SubjectMirror), unmirrored(txn, r, "sluice_routes", d.RouteMirror),
			unmirrored(txn, r, "sluice_peers", d.PeerMirror), unmirrored(txn, r, "sluice_egress", d.EgressMirror),
		} {
			if what != "" {
				wrong = append(wrong, fmt.Sprintf("after %v: %s", w, what))
			}
		}
	})
	// Called with the lock of the maps held.
	faults, faulty := rand.New(rand.NewPCG(seed, 2)), true
	d.memory.Inject(func(string, bpf.Op) error {
		switch n := faults.IntN(20); {
		case faulty && n == 0:
			return unix.EPERM
		case faulty && n == 1:
			return unix.ENOMEM
		}
		return nil
	})
	for range 200 {
		d.step(1 + d.rnd.IntN(3))
		if d.rnd.IntN(4) == 0 {
			time.Sleep(time.Duration(d.rnd.IntN(20)) * time.Millisecond) // have the loops come to all stages
		}
	}
	d.memory.Read(func(bpf.Reader) { faulty = false })
	await.True(t, func() bool {
		time.Sleep(10 * time.Millisecond)
		d.step(0)
		txn := d.DB.ReadTxn()
		return !d.garbage() &&
			settled(txn, d.Pods.RWTable, d.PodMirror) &&
			settled(txn, d.IPCache.RWTable, d.IPCacheMirror) &&
			settled(txn, d.Subjects.RWTable, d.SubjectMirror) &&
			settled(txn, d.Routes.RWTable, d.RouteMirror) &&
			settled(txn, d.Members.RWTable, d.PeerMirror) &&
			settled(txn, d.PolicyEntries.RWTable, d.PolicyMirror) &&
			settled(txn, d.Verdicts.RWTable, d.VerdictMirror) &&
			settled(txn, d.EgressRules.RWTable, d.EgressMirror) &&
			settled(txn, d.Gateways.RWTable, d.GatewayMirror)
	})
	d.memory.Read(func(r bpf.Reader) {
		require.Empty(t, wrong)
		kernel := map[netip.Prefix]uint32{}
		for key, v := range bpf.All[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache") {
			kernel[key.Prefix()] = v.Member
		}
		require.Equal(t, d.addresses, kernel)
	})
}
