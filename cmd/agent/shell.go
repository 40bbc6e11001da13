// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/hive/shell"
)

// shellCell serves the script commands of all modules to hive's shell client. Hive's own
// server would add exec, which runs any program as the agent.
var shellCell = cell.Module(
	"shell",
	"Script commands over a socket",

	cell.Config(shell.Config{}),
	cell.Invoke(func(
		in hive.ScriptCmds, log *slog.Logger, jobs job.Group, c shell.Config,
	) {
		if c.ShellSockPath == "" {
			return
		}
		commands := in.Map()
		commands["help"] = script.DefaultCmds()["help"]
		s := &shellServer{log, c.ShellSockPath, &script.Engine{Cmds: commands}}
		jobs.Add(job.OneShot("listener", s.run))
	}),
)

type shellServer struct {
	log    *slog.Logger
	path   string
	engine *script.Engine
}

// Lines that end the output of a command: see hive's package shell.
const (
	shellEnd   = "<<end>>"
	shellError = "<<error>>"
)

func (s *shellServer) run(ctx context.Context, health cell.Health) error {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove former socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", s.path)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.path, err)
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	health.OK("Listening on " + s.path)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", s.path, err)
		}
		clients.Go(func() { s.serve(ctx, conn) })
	}
}

// serve runs the commands of a client, one a line, until it leaves.
func (s *shellServer) serve(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	defer func() {
		if cause := recover(); cause != nil {
			s.log.Error("A script command panics", "cause", cause)
			fmt.Fprintf(conn, "the command panics: %v%s\n", cause, shellError)
		}
	}()
	state, err := script.NewState(ctx, os.TempDir(), nil)
	if err != nil {
		s.log.Error("Cannot run script commands", "error", err)
		return
	}
	out := endingWriter{conn, cancel}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch line := lines.Text(); line {
		case "stop", "exit", "quit":
			return
		default:
			if err := s.engine.ExecuteLine(state, line, out); err != nil {
				fmt.Fprintf(out, "%s%s\n", err, shellError)
			} else {
				fmt.Fprintln(out, shellEnd)
			}
		}
	}
}

// endingWriter ends the command whose client has left.
type endingWriter struct {
	io.Writer
	end func()
}

func (w endingWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil {
		w.end()
	}
	return n, err
}
