// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/script"
	"github.com/cilium/hive/script/scripttest"
	"github.com/stretchr/testify/require"
)

func TestScript(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel) // after the scripts, which run in parallel
	scripttest.Test(t, ctx, func(t testing.TB, _ []string) *script.Engine {
		log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
		h := newHive(FakeCell, cell.Invoke(func(views) {}))
		cmds, err := h.ScriptCommands(log)
		require.NoError(t, err)
		maps.Copy(cmds, scripttest.DefaultCmds())
		t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
		return &script.Engine{
			Cmds:             cmds,
			Conds:            scripttest.DefaultConds(),
			RetryInterval:    10 * time.Millisecond,
			MaxRetryInterval: 100 * time.Millisecond,
		}
	}, nil, "testdata/*.txtar")
}
