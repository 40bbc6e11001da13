// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"context"
	"iter"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

const name = "net/ipv4/conf/eth0/rp_filter"

func in(dir string) func() formerValues {
	return func() formerValues { return formerValues{formerPath(dir)} }
}

func rows(rows ...*tables.Sysctl) iter.Seq2[*tables.Sysctl, statedb.Revision] {
	return func(yield func(*tables.Sysctl, statedb.Revision) bool) {
		for _, row := range rows {
			if !yield(row, 1) {
				return
			}
		}
	}
}

func TestFormerValueIsRestored(t *testing.T) {
	ctx, dir, kernel := context.Background(), t.TempDir(), &Memory{}
	require.NoError(t, kernel.Write(name, "1"))
	row := &tables.Sysctl{Name: name, Value: "2"}
	ops := &operations{kernel, in(dir)}

	require.NoError(t, ops.Update(ctx, nil, 0, row))
	require.NoError(t, ops.Update(ctx, nil, 0, row), "again, as a refresh does")
	value, _ := kernel.Read(name)
	require.Equal(t, "2", value)

	require.NoError(t, ops.Delete(ctx, nil, 0, row))
	value, _ = kernel.Read(name)
	require.Equal(t, "1", value)
	former, err := ops.former().load()
	require.NoError(t, err)
	require.Empty(t, former)
}

func TestFormerValueIsRestoredAfterCrash(t *testing.T) {
	ctx, dir, kernel := context.Background(), t.TempDir(), &Memory{}
	require.NoError(t, kernel.Write(name, "1"))
	crashed := &operations{kernel, in(dir)}
	require.NoError(t, crashed.Update(ctx, nil, 0, &tables.Sysctl{Name: name, Value: "2"}))

	restarted := &operations{kernel, in(dir)}
	require.NoError(t, restarted.Prune(ctx, nil, rows(&tables.Sysctl{Name: name, Value: "2"})))
	value, _ := kernel.Read(name)
	require.Equal(t, "2", value, "still wanted")

	require.NoError(t, restarted.Prune(ctx, nil, rows()))
	value, _ = kernel.Read(name)
	require.Equal(t, "1", value)
}

func TestParameterOfVanishedDevice(t *testing.T) {
	ctx, dir, kernel := context.Background(), t.TempDir(), &Memory{}
	row := &tables.Sysctl{Name: name, Value: "2"}
	ops := &operations{kernel, in(dir)}
	require.NoError(t, ops.Update(ctx, nil, 0, row))

	kernel.SetAbsent(name, true)
	require.Error(t, ops.Update(ctx, nil, 0, row))
	require.NoError(t, ops.Delete(ctx, nil, 0, row))

	kernel.SetAbsent(name, false)
	require.NoError(t, ops.Prune(ctx, nil, rows()))
	value, _ := kernel.Read(name)
	require.Equal(t, "0", value, "the value of a former device of the name is not given to a new one")
}

func TestNothingIsRememberedOfWhatNeedNotChange(t *testing.T) {
	kernel := &Memory{}
	require.NoError(t, kernel.Write(name, "2"))
	ops := &operations{kernel, in(t.TempDir())}
	require.NoError(t, ops.Update(context.Background(), nil, 0, &tables.Sysctl{Name: name, Value: "2"}))
	former, err := ops.former().load()
	require.NoError(t, err)
	require.Empty(t, former)
}
