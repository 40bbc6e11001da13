// SPDX-License-Identifier: Apache-2.0

// Package sysctl sets the kernel parameters that the table sysctls wants, and
// restores what they were when nothing wants them any more.
//
// The former values are kept in a file of the state directory, written before
// the parameter is: so they are restored also after a crash, by the next start
// that does not want them or by sluice cleanup.
package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// StateDir is the directory for what has to outlive the agent.
type StateDir string

// Cell reconciles the kernel parameters.
var Cell = cell.Module(
	"sysctl",
	"Kernel parameters",

	cell.Config(Config{Procfs: "/proc"}),
	cell.ProvidePrivate(newParameters),
	cell.Invoke(register),
)

// Config says where the kernel's parameters are.
type Config struct{ Procfs string }

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("procfs", c.Procfs, "Where procfs is mounted with a writable sys: in a container, the node's")
}

func newParameters(cfg Config, maps *bpf.Maps) *byBackend {
	return &byBackend{maps: maps, kernel: Proc(cfg.Procfs)}
}

type params struct {
	cell.In

	Reconciler reconciler.Params
	Sysctls    tables.Desired[*tables.Sysctl]
	Dir        StateDir
	Parameters *byBackend
}

func register(p params) error {
	_, err := reconciler.Register(
		p.Reconciler,
		p.Sysctls.RWTable,
		tables.Clone[tables.Sysctl],
		tables.WithStatus[tables.Sysctl],
		(*tables.Sysctl).GetStatus,
		&operations{Parameters: p.Parameters, former: func() formerValues {
			return formerValues{path: filepath.Join(string(p.Dir), p.Parameters.formerFile())}
		}},
		nil, // no batch operations
		reconciler.WithRetry(100*time.Millisecond, 30*time.Second),
		reconciler.WithPruning(30*time.Minute),
	)
	return err
}

// operations are the operations of the reconciler, which calls one at a time.
type operations struct {
	Parameters
	former func() formerValues // asked each time: the agent chooses its maps when it starts
}

var _ reconciler.Operations[*tables.Sysctl] = &operations{}

// Update implements [reconciler.Operations].
func (o *operations) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.Sysctl) error {
	value, err := o.Read(row.Name)
	if err != nil || value == row.Value {
		return err
	}
	if err := o.former().remember(row.Name, value); err != nil {
		return err
	}
	return o.Write(row.Name, row.Value)
}

// Delete implements [reconciler.Operations].
func (o *operations) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *tables.Sysctl) error {
	return restore(o.Parameters, o.former(), row.Name)
}

// Prune implements [reconciler.Operations]: what an earlier run set and no row
// wants is restored.
func (o *operations) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*tables.Sysctl, statedb.Revision]) error {
	wanted := map[string]bool{}
	for row := range rows {
		wanted[row.Name] = true
	}
	former, err := o.former().load()
	if err != nil {
		return err
	}
	var errs []error
	for name := range former {
		if !wanted[name] {
			errs = append(errs, restore(o.Parameters, o.former(), name))
		}
	}
	return errors.Join(errs...)
}

// restore gives a parameter its former value, if one is remembered. A parameter
// that is gone, as with its device, needs none.
func restore(p Parameters, former formerValues, name string) error {
	values, err := former.load()
	if err != nil {
		return err
	}
	value, remembered := values[name]
	if !remembered {
		return nil
	}
	if err := p.Write(name, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return former.forget(name)
}

// Restore gives all parameters that an agent has set their former values, and
// returns them as name=value.
func Restore(stateDir, procfs string) (restored []string, err error) {
	former := formerValues{path: formerPath(stateDir)}
	values, err := former.load()
	if err != nil {
		return nil, err
	}
	var errs []error
	for name, value := range values {
		if err := restore(Proc(procfs), former, name); err != nil {
			errs = append(errs, err)
			continue
		}
		restored = append(restored, fmt.Sprintf("%s=%s", name, value))
	}
	return restored, errors.Join(errs...)
}
