// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	lock, err := AcquireLock(dir)
	require.NoError(t, err)

	_, err = AcquireLock(dir)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))

	require.NoError(t, lock.Release())
	lock, err = AcquireLock(dir)
	require.NoError(t, err, "the file that stays does not lock")
	require.NoError(t, lock.Remove())
	require.NoFileExists(t, filepath.Join(dir, lockName))
}

// Whoever has the file open that a cleanup removes must not have locked the
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
