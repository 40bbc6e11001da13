// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables/pause"
)

// stateDirCell says in health whether the state directory can be written. The agent works
// without, but for what must be restored after it.
var stateDirCell = cell.Module(
	"state-dir",
	"Whether the state directory can be written",

	cell.Invoke(func(jobs job.Group, health cell.Health, c Config) {
		jobs.Add(job.OneShot("check-state-dir", func(ctx context.Context, _ cell.Health) error {
			for {
				if err := checkStateDir(c.StateDir); err != nil {
					health.Degraded("Cannot write to the state directory", err)
				} else {
					health.OK("The state directory can be written")
				}
				if !pause.For(ctx, stateDirInterval) {
					return nil
				}
			}
		}))
	}),
)

// stateDirInterval is how often a file is written to the state directory to find out.
const stateDirInterval = 30 * time.Second

// checkFile is the file's name. An agent that is killed leaves it behind, and sluice cleanup
// removes it.
const checkFile = "check"

// checkStateDir writes a file to the state directory, and removes it.
func checkStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	path := filepath.Join(dir, checkFile)
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		_ = os.Remove(path) // it may not be there
		return err
	}
	return os.Remove(path)
}

// isUnwritable reports whether a file system had no room for what was written, or is read-only, as
// the kernel makes one whose disk fails.
func isUnwritable(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}
