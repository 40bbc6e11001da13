// SPDX-License-Identifier: Apache-2.0

package agent

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
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/sources"
	"github.com/sluice-net/sluice/sources/kubernetes"
)

// The scripts of testdata/operator run the whole operator, with an API server in memory.
func TestOperatorScripts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	t.Cleanup(cancel) // after the scripts, which run in parallel
	scripttest.Test(t, ctx, newOperatorEngine, nil, "../../testdata/operator/*.txtar")
}

func newOperatorEngine(t testing.TB, args []string) *script.Engine {
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	fake := kubernetes.NewFakeAPI()
	writer := &fakeWriter{api: fake, status: map[string]any{}}
	h := NewOperator(
		cell.Provide(func() *kubernetes.FakeAPI { return fake }),
		sources.OperatorFakeCell,
		OperatorDataflow,
		writer.operatorCell(),
		api.ListenCell, api.Cell,
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(append([]string{
		"--api-listen=127.0.0.1:0", "--socket=", "--identity=operator-1",
	}, args...)))
	cmds := scripttest.DefaultCmds()
	own, err := h.ScriptCommands(log)
	require.NoError(t, err)
	maps.Copy(cmds, own)
	cmds["k8s/status"], cmds["k8s/events"] = writer.statusCommand(), writer.eventsCommand()
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return &script.Engine{
		Cmds: cmds, Conds: scripttest.DefaultConds(),
		RetryInterval: 10 * time.Millisecond, MaxRetryInterval: 100 * time.Millisecond,
	}
}

// The operator is complete without what touches a node: no BPF, no netlink, no state directory.
func TestOperatorIsComplete(t *testing.T) {
	p, flags := populateOperator(t)
	require.NotEmpty(t, p.DB.GetTables(p.DB.ReadTxn()))
	for _, name := range []string{"bpf", "bpffs", "state-dir", "procfs", "node-name", "source"} {
		require.Nil(t, flags.Lookup(name), name)
	}
}
