// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// dropCapabilities leaves the test the capabilities that deploy/daemonset.yaml
// gives the agent.
func dropCapabilities(t *testing.T) {
	t.Helper()
	require.NoError(t, capset())
}

// capset does so with the goroutine, whose thread ends with it.
func capset() error {
	runtime.LockOSThread()
	const caps = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_PERFMON | 1<<unix.CAP_BPF
	var data [2]unix.CapUserData
	for i := range data {
		half := uint32(uint64(caps) >> (32 * i))
		data[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&header, &data[0])
}

// All works with the capabilities of the agent.
func TestCapabilitiesOfTheAgent(t *testing.T) {
	t.Parallel()
	dir := mapsDir(t)
	before := openOrCreate(t, dir)
	require.NoError(t, before.Create(7, testSizes))
	fill(t, get(t, before, 7))
	t.Run("drop", func(t *testing.T) {
		dropCapabilities(t)
		_, err := ebpf.NewMapFromID(info(t, before.arrays[0]))
		require.ErrorIs(t, err, unix.EPERM, "the test has the capability still")

		m, err := Open(dir)
		require.NoError(t, err)
		defer m.Close()
		requireClusters(t, m, 7)
		seven := get(t, m, 7)
		require.Len(t, seven.All(), len(kinds))
		requireFilled(t, seven, 1)

		require.NoError(t, m.Create(9, testSizes))
		fill(t, get(t, m, 9))
		require.NoError(t, m.Create(7, testSizes))
		require.Equal(t, info(t, seven.Set().NAT6), info(t, get(t, m, 7).Set().NAT6))
		require.NoError(t, m.Create(7, Sizes{CTTCP: 400, CTAny: 500, NAT: 600}))
		require.NotEqual(t, info(t, seven.Set().NAT6), info(t, get(t, m, 7).Set().NAT6))
		requireFilled(t, get(t, m, 7), 1)
		requireClusters(t, m, 7, 9)
		requireSettled(t, m)

		require.NoError(t, openOrCreate(t, dir).Delete(7))
		requireClusters(t, m, 9)
		requireSettled(t, m)
		_, err = m.Get(7)
		require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
		require.NoError(t, m.Create(7, testSizes))
		requireFilled(t, get(t, m, 7), 0)
		removed, err := Cleanup(dir)
		require.NoError(t, err)
		require.Len(t, removed, len(kinds)+1)
	})
}

const changerEnv = "SLUICE_TEST_PERCLUSTER_CHANGER"

// TestMain is the changer of maps, where the environment says so.
func TestMain(m *testing.M) {
	dir := os.Getenv(changerEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	err := change(dir)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// change creates, replaces and deletes the maps of cluster 7 until it is killed.
func change(dir string) error {
	if err := capset(); err != nil {
		return err
	}
	m, err := OpenOrCreate(dir, nil)
	for round := uint32(0); err == nil; round++ {
		sizes := Sizes{CTTCP: 10 + round%3, CTAny: 10 + round%3, NAT: 10 + round%3}
		if round == 0 {
			fmt.Println("changing")
		}
		if err = m.Create(7, sizes); err == nil && round%3 == 2 {
			err = m.Delete(7)
		}
	}
	return err
}

// While a process changes maps, readers without CAP_SYS_ADMIN see those that
// there are; so they do when it has been killed, wherever it was, and the next
// one leaves no pin too many.
func TestKilledWhileItChanges(t *testing.T) {
	t.Parallel()
	dir := mapsDir(t)
	m := openOrCreate(t, dir)
	t.Run("drop", func(t *testing.T) {
		dropCapabilities(t)
		read := func() (found bool) {
			c, err := m.Get(7)
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				return false
			}
			require.NoError(t, err)
			require.NoError(t, c.Close())
			return true
		}
		found := 0
		const rounds = 10
		for round := range rounds {
			changer := exec.Command(os.Args[0])
			changer.Env = append(os.Environ(), changerEnv+"="+dir)
			changer.Stderr = os.Stderr
			out, err := changer.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, changer.Start())
			_, err = bufio.NewReader(out).ReadString('\n')
			// The changer is killed at different moments, the last time when a map was found.
			end := time.Now().Add(time.Duration(13*round+5) * time.Millisecond)
			for err == nil && (time.Now().Before(end) || round == rounds-1 && found == 0) {
				if read() {
					found++
				}
			}
			require.NoError(t, errors.Join(err, changer.Process.Kill()))
			require.ErrorContains(t, changer.Wait(), "signal: killed")
			read()
			require.NoError(t, openOrCreate(t, dir).Close())
			requireSettled(t, m)
		}
	})
}
