// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// While the tables fill, little of what is allocated is garbage, but the collector goes
// through all of it each time that there is twice as much: a sixth of the CPU of a
// start. So nothing is collected before all maps have had their first round, or the
// agent has taken this many bytes, or a quarter of what it may take.
const uncollected = 512 << 20

// memoryMax is where cgroup v2 says how many bytes the agent may take, or "max".
const memoryMax = "/sys/fs/cgroup/memory.max"

// gcPercent is how much more there may be than at the last collection: the default.
const gcPercent = 100

// startupCell spares the start the garbage collection, unless GOGC or GOMEMLIMIT say
// when there is to be one.
var startupCell = cell.Module(
	"startup",
	"Garbage collection at the start",

	cell.Invoke(func(jobs job.Group, db *statedb.DB, maps statedb.Table[*tables.Slot]) {
		if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
			return
		}
		jobs.Add(job.OneShot("put-off-garbage-collection", func(
			ctx context.Context, _ cell.Health,
		) error {
			_, written := maps.Initialized(db.ReadTxn())
			putOffCollection(ctx, written, uncollectedOf(memoryMax))
			return nil
		}))
	}),
)

// uncollectedOf returns how many bytes may be taken, by a file that says the limit.
func uncollectedOf(file string) int64 {
	text, _ := os.ReadFile(file)
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return uncollected // no limit, or none that is known
	}
	return min(uncollected, limit/4)
}

// putOffCollection has nothing collected until the start is over, or the heap large.
func putOffCollection(ctx context.Context, started <-chan struct{}, limit int64) {
	debug.SetMemoryLimit(limit)
	debug.SetGCPercent(-1)
	defer debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetGCPercent(gcPercent)
	select {
	case <-started:
	case <-nextCollection():
	case <-ctx.Done():
	}
}

// nextCollection returns a channel that closes when the next collection that begins
// has found something.
func nextCollection() <-chan struct{} {
	collected := make(chan struct{})
	garbage := new([64]byte) // too large to share its memory with what is not garbage
	runtime.AddCleanup(garbage, func(collected chan struct{}) { close(collected) }, collected)
	return collected
}
