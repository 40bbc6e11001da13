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
// in it, or is read-only, and says so in health. It is still the only one.
func TestUnwritableStateDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const full = "mount -t tmpfs -o size=4k,nr_inodes=%d tmpfs state; " +
		"head -c 9000 /dev/zero > state/fill"
	for name, c := range map[string]struct{ mount, says string }{
		"no room in files":  {fmt.Sprintf(full, 9), "no space left on device"},
		"no room for files": {fmt.Sprintf(full, 2), "no space left on device"},
		"read-only":         {"mount -t tmpfs -o ro tmpfs state", "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startAgentBy(t, "mkdir state && "+c.mount)
			await.True(t, func() bool {
				health := sluice(t, "get", "health")
				return strings.Contains(health.stdout, "Cannot write to the state directory") &&
					strings.Contains(health.stdout, c.says)
			})
			require.Contains(t, p.stderr.String(), "The state directory cannot be written")

			// Its directory as it sees it, for another agent.
			state := fmt.Sprintf("/proc/%d/root%s/state", p.cmd.Process.Pid, p.dir)
			second := sluice(t, "agent", "--bpf=memory", "--api-listen=", "--state-dir="+state,
				"--socket="+p.dir+"/other.sock")
			require.NotEqual(t, exitOK, second.code)
			require.Contains(t, second.stderr, "another agent is running")

			_ = os.Remove(state + "/fill") // with room or without it can stop
			require.Equal(t, exitOK, p.stop(t, syscall.SIGTERM))
		})
	}
}
