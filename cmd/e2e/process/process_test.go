// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcessIsKilledAndItsLogKept(t *testing.T) {
	log := filepath.Join(t.TempDir(), "child.log")
	p, err := Start("child", log, exec.Command("sh", "-c", "for i in 1 2 3; do echo $i; done; exec sleep 600"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.LogTail(2) == "2\n3" }, 30*time.Second, time.Millisecond)
	p.Kill()
	require.False(t, p.State().Success())
	p.Kill() // again is no error

	_, err = Start("missing", log, exec.Command("/no-such-binary"))
	require.ErrorContains(t, err, "start missing")
}

// A child dies also with a test binary that had no time to clean up.
func TestProcessDiesWithItsParent(t *testing.T) {
	const variable = "SLUICE_TEST_PARENT"
	if dir := os.Getenv(variable); dir != "" {
		p, err := Start("child", filepath.Join(dir, "child.log"), exec.Command("sleep", "600"))
		require.NoError(t, err)
		fmt.Printf("child %d\n", p.cmd.Process.Pid)
		<-p.Exited()
		return
	}
	parent := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), variable+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	lines := bufio.NewScanner(out)
	child := 0
	for child == 0 && lines.Scan() {
		if number, ok := strings.CutPrefix(lines.Text(), "child "); ok {
			child, err = strconv.Atoi(number)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, child)
	require.NoError(t, syscall.Kill(child, 0), "the child runs")
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool { return !running(child) }, 30*time.Second, time.Millisecond)
}

// running reports whether a process exists and is no zombie, as which an
// orphan stays where nothing reaps it.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
