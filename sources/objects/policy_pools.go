// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"
	"reflect"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// withPool returns the gateways of a policy that names a pool, which gives them their address. A
// gateway that names an address itself is a mistake: which one counts is not known.
func withPool(gateways []tables.GatewaySpec, pool string, errs *fieldErrors) []tables.GatewaySpec {
	if pool == "" {
		return gateways
	}
	const field = "metadata.annotations[" + tables.PoolAnnotation + "]"
	if checkName(field, pool) != nil {
		errs.add(field, quoted(pool, "is no name of an EgressIPPool").Error())
	}
	for i := range gateways {
		if g := &gateways[i]; g.EgressIP.IsValid() || g.Interface != "" {
			errs.add(field, "excludes egressIP and interface of gateways")
		}
	}
	for i := range gateways {
		switch g := &gateways[i]; {
		case g.Error != "":
		case len(errs.of(field)) > 0:
			g.Error = errs.of(field).String()
		default:
			g.Pool = pool
		}
	}
	return gateways
}

// withPool returns a policy with the address that a pool has given to it.
func (t *Tables) withPool(txn statedb.ReadTxn, p *tables.EgressPolicy) *tables.EgressPolicy {
	return p.WithPool(txn, t.EgressIPPools)
}

// GivePoliciesAddrs returns a job that gives policies the addresses that pools have given to them,
// and namespaces their policies, when these change. It covers pools that come after the policy.
// When the policy comes later, its writer looks up the pool itself: whichever transaction commits
// second sees the other's row. The table of policies is initialized when those of pools and
// namespaces are: policies have their addresses then.
func GivePoliciesAddrs(db *statedb.DB, t Tables) func(context.Context, cell.Health) error {
	wtxn := db.WriteTxn(t.EgressPolicies)
	initialized := t.EgressPolicies.RegisterInitializer(wtxn, t.EgressIPPools.Name())
	wtxn.Commit()
	return func(ctx context.Context, _ cell.Health) error {
		if !tables.AwaitInitialized(ctx, db, t.EgressIPPools, t.Namespaces) {
			return nil
		}
		for {
			now := db.ReadTxn()
			_, pools := t.EgressIPPools.AllWatch(now)
			_, namespaces := t.Namespaces.AllWatch(now)
			if err := t.givePoliciesAddrs(db, initialized); err != nil {
				return fmt.Errorf("give policies addresses of pools: %w", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-pools:
			case <-namespaces:
			}
		}
	}
}

// givePoliciesAddrs gives namespaces their policies, and all policies the addresses that pools
// have given to them by now.
func (t *Tables) givePoliciesAddrs(db *statedb.DB, initialized func(statedb.WriteTxn)) error {
	wtxn := db.WriteTxn(t.EgressPolicies)
	defer wtxn.Abort()
	changed := false
	for p := range t.EgressPolicies.All(wtxn) {
		with := t.withPool(wtxn, p)
		if p.Namespace != "" {
			with = t.ofNamespace(wtxn, p.Namespace)
		}
		var err error
		switch {
		case with == nil:
			_, _, err = t.EgressPolicies.Delete(wtxn, p)
		case reflect.DeepEqual(with, p):
			continue
		default:
			_, _, err = t.EgressPolicies.Insert(wtxn, with)
		}
		if err != nil {
			return err
		}
		changed = true
	}
	for n := range t.Namespaces.All(wtxn) {
		p := t.ofNamespace(wtxn, n.Name)
		if p == nil {
			continue
		}
		if _, _, found := t.EgressPolicies.Get(wtxn, tables.EgressPolicyByName(p.Name)); found {
			continue
		}
		if _, _, err := t.EgressPolicies.Insert(wtxn, p); err != nil {
			return err
		}
		changed = true
	}
	done, _ := t.EgressPolicies.Initialized(wtxn)
	if initialized(wtxn); changed || !done {
		wtxn.Commit()
	}
	return nil
}

// ofNamespace returns the policy of a namespace, nil if it names no pool.
func (t *Tables) ofNamespace(txn statedb.ReadTxn, name string) *tables.EgressPolicy {
	n, _, found := t.Namespaces.Get(txn, tables.NamespaceByName(name))
	if !found || n.EgressIPPool == "" {
		return nil
	}
	return t.withPool(txn, tables.NamespacePolicy(n))
}
