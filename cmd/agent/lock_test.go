// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	lock, err := AcquireLock(dir)
	require.NoError(t, err)

	_, err = AcquireLock(dir)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, fmt.Sprintf("another agent is running: process %d (started ", os.Getpid()))
	require.ErrorContains(t, err, ") holds "+filepath.Join(dir, lockName))

	require.NoError(t, lock.Release())
	lock, err = AcquireLock(dir)
	require.NoError(t, err, "the file that stays does not lock")
	require.NoError(t, lock.Remove())
	require.NoFileExists(t, filepath.Join(dir, lockName))
}

// A process in a container has PID 1 there. The error then says that this is no PID of
// the reader's, and the pod.
func TestLockHolderElsewhere(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("POD_NAME", "sluice-x7k2p")
	lock, err := AcquireLock(dir)
	require.NoError(t, err)
	defer lock.Release()
	holder, err := ReadLock(dir)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), holder.PID)
	require.False(t, holder.Elsewhere())

	holder.PID, holder.PIDNamespace = 1, "pid:[1]"
	data, err := json.Marshal(holder)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, lockName), data, 0o644))
	_, err = AcquireLock(dir)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "process 1 of another PID namespace in pod sluice-x7k2p (started ")

	require.NoError(t, os.WriteFile(filepath.Join(dir, lockName), nil, 0o644))
	_, err = AcquireLock(dir)
	require.ErrorContains(t, err, "an unknown process holds")
}

// A process with the file open that a cleanup removes must not have locked the
// directory by locking it.
func TestLockRemovedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	first, err := AcquireLock(dir)
	require.NoError(t, err)
	stale, err := os.Open(filepath.Join(dir, lockName))
	require.NoError(t, err)
	defer stale.Close()
	require.True(t, same(stale, filepath.Join(dir, lockName)))
	require.NoError(t, first.Remove())
	require.False(t, same(stale, filepath.Join(dir, lockName)))

	second, err := AcquireLock(dir)
	require.NoError(t, err)
	defer second.Release()
	require.False(t, same(stale, filepath.Join(dir, lockName)))
}
