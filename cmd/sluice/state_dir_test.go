// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// An agent starts also when its state directory has no room, be it for a file or for what is
// in it, and says so in health. It is still the only one.
func TestFullStateDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, inodes := range map[string]int{"no room in files": 9, "no room for files": 2} {
		t.Run(name, func(t *testing.T) {
			p := startAgentBy(t, fmt.Sprintf("mkdir state && mount -t tmpfs "+
				"-o size=4k,nr_inodes=%d tmpfs state; head -c 9000 /dev/zero > state/fill", inodes))
			await.True(t, func() bool {
				health := sluice(t, "get", "health")
				return strings.Contains(health.stdout, "Cannot write to the state directory") &&
					strings.Contains(health.stdout, "no space left on device")
			})
			require.Contains(t, p.stderr.String(), "The state directory has no room")

			// Its directory as it sees it, for another agent.
			state := fmt.Sprintf("/proc/%d/root%s/state", p.cmd.Process.Pid, p.dir)
			second := sluice(t, "agent", "--bpf=memory", "--api-listen=", "--state-dir="+state,
				"--socket="+p.dir+"/other.sock")
			require.NotEqual(t, exitOK, second.code)
			require.Contains(t, second.stderr, "another agent is running")

			require.NoError(t, os.Remove(state+"/fill"))
			require.Equal(t, exitOK, p.stop(t, syscall.SIGTERM))
		})
	}
}
