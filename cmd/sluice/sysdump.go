// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/sysdump"
	"github.com/sluice-net/sluice/cmd/version"
)

// dump is a sluice sysdump.
type dump struct {
	server, bpffs *string
	stateDir      string
	logFile       string
	connections   bool
	maxFile       int

	*sysdump.Archive
	node string // where it is made, as the agent says, or else the host name
}

func newSysdumpCommand() *cobra.Command {
	d := &dump{}
	cmd := &cobra.Command{
		Use:   "sysdump [FILE]",
		Short: "Collect what a bug report needs into one archive, without secrets",
		Long: `Collect what a bug report needs into one archive, a .tar.gz that only its owner can
read: what the agent says of itself, all tables, the BPF maps and programs of the
kernel, and how the node's network is set up. Without FILE the name has the node
and the time; with - it goes to standard output.

No Secret, kubeconfig or token is read, and what looks like one elsewhere, as in a
label or a flag, is replaced. Names and addresses of the cluster are in the
archive: look into it before you send it.

What cannot be had is named in errors.txt, and is no error: it works as well when
the agent is dead, and best as root on the agent's node.`,
		Example: `  sudo sluice sysdump
  sluice sysdump /tmp/report.tar.gz --connections
  kubectl exec -n sluice-system sluice-x7k2p -- sluice sysdump - > report.tar.gz`,
		Args: atMostOneArg("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := untilInterrupted(cmd.Context())
			defer cancel()
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return d.run(ctx, cmd, name)
		},
	}
	flags := cmd.Flags()
	d.server = serverFlag(flags)
	d.bpffs = bpffsFlag(flags)
	flags.StringVar(&d.stateDir, "state-dir", cmp.Or(os.Getenv(agent.EnvironmentName("state-dir")), agent.DefaultConfig.StateDir), "directory of the agent's state")
	flags.StringVar(&d.logFile, "log-file", "", "file with the agent's log, of which the end is taken (default: the kubelet's, or the journal)")
	flags.BoolVar(&d.connections, "connections", false, "also the connections and translations themselves, not only how many there are")
	flags.IntVar(&d.maxFile, "max-file", 32<<20, "bytes of each file in the archive: of a longer one the rest is left out")
	return cmd
}

// agentTime is for the agent to answer all that it is asked. One that hangs is not
// waited for with each request.
const agentTime = 3 * time.Minute

func (d *dump) run(ctx context.Context, cmd *cobra.Command, name string) (err error) {
	if d.maxFile < 1 {
		return agent.UsageErrorf("--max-file %d is not positive", d.maxFile)
	}
	c, agentErr := connect(ctx, *d.server)
	if isUsage(agentErr) {
		return agentErr
	}
	if agentErr == nil {
		defer c.close()
	}
	now := time.Now()
	d.node = d.findNode(ctx, c)
	title := fmt.Sprintf("sluice-sysdump-%s-%s", d.node, now.UTC().Format("20060102-150405"))

	w, out := io.Writer(cmd.OutOrStdout()), cmd.ErrOrStderr()
	if name != "-" {
		name = cmp.Or(name, title+".tar.gz")
		file, createErr := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if createErr != nil {
			return fmt.Errorf("create the archive: %w", createErr)
		}
		defer func() {
			if err = errors.Join(err, file.Close()); err != nil {
				os.Remove(name) // half of a report would be taken for one
			}
		}()
		w, out = file, cmd.OutOrStdout()
	}
	d.Archive = sysdump.New(w, title, now, d.maxFile)
	if agentErr != nil {
		d.Fail("agent", agentErr)
	} else {
		d.ask(ctx, c)
	}
	d.look(ctx, c)
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := d.Close(); err != nil {
		return err
	}
	return d.report(out, name)
}

// findNode returns the name of the node for that of the archive.
func (d *dump) findNode(ctx context.Context, c *client) string {
	var answer struct{ Node string }
	if c != nil && c.getJSON(ctx, "/version", &answer) == nil && answer.Node != "" && !strings.Contains(answer.Node, "/") {
		return answer.Node
	}
	host, err := os.Hostname()
	if err != nil || strings.Contains(host, "/") {
		return "node"
	}
	return host
}

// look adds what can be had without the agent.
func (d *dump) look(ctx context.Context, c *client) {
	d.JSON("version.json", func() (any, error) { return version.Get(), nil })
	if pid, err := d.process(c); err != nil {
		d.Fail("agent/process.txt", err)
	} else {
		sysdump.Process(d.Archive, pid)
	}
	sysdump.State(d.Archive, d.stateDir)
	sysdump.Log(d.Archive, d.logFile)
	sysdump.Kernel(d.Archive, *d.bpffs)
	sysdump.Node(d.Archive)
	d.addConnections(ctx)
}

// process returns the agent's process: who listens on its socket, or else who has
// locked its state.
func (d *dump) process(c *client) (pid int, err error) {
	if c != nil && c.socket != "" {
		if pid, err = sysdump.PeerOf(c.socket); err == nil && pid > 0 {
			return pid, nil
		}
	}
	holder, lockErr := agent.ReadLock(d.stateDir)
	switch {
	case lockErr != nil:
	case holder.Elsewhere():
		lockErr = fmt.Errorf("find the agent's process: %s has locked %s", holder, d.stateDir)
	default:
		lockErr = sysdump.IsAgent(holder.PID)
	}
	if lockErr != nil {
		return 0, errors.Join(err, lockErr)
	}
	return holder.PID, nil
}

// addConnections adds how many connections the maps have and, if asked for, which.
func (d *dump) addConnections(ctx context.Context) {
	pinned, err := openPinned(*d.bpffs)
	if err != nil {
		d.Fail("connections", err)
		return
	}
	defer pinned.close()
	d.JSON("connections/count.json", func() (any, error) { return pinned.count() })
	if !d.connections {
		return
	}
	n, err := askNames(ctx, *d.server, io.Discard)
	if err != nil {
		n = &names{}
	}
	match, err := parseMatch(&(&ctFilter{}).match)
	if err != nil {
		d.Fail("connections", err)
		return
	}
	for _, m := range pinned.connections() {
		d.JSON("connections/"+fileName(m.Name())+".json", func() (any, error) { return connectionsOf(m, pinned.now, match, n) })
	}
	for _, m := range pinned.translations() {
		d.JSON("connections/"+fileName(m.Name())+".json", func() (any, error) { return translationsOf(m, pinned.now, match, n) })
	}
}

func fileName(name string) string { return strings.ReplaceAll(name, "/", "-") }

// report says what the archive holds.
func (d *dump) report(w io.Writer, name string) error {
	size, tables, rows := 0, 0, 0
	var cut []string
	for _, f := range d.Files() {
		size += f.Size
		if strings.HasPrefix(f.Name, "tables/") {
			tables++
			rows += f.Rows
		}
		if f.Cut {
			cut = append(cut, f.Name)
		}
	}
	fmt.Fprintf(w, "%s: %d files of node %s, %.1f MB before compression; %d tables with %d rows\n", name, len(d.Files()), d.node, float64(size)/1e6, tables, rows)
	if len(cut) > 0 {
		fmt.Fprintf(w, "Not whole: %s\n", strings.Join(cut, ", "))
	}
	if n := len(d.Errors()); n > 0 {
		fmt.Fprintf(w, "%d things could not be had, errors.txt says why:\n", n)
		for _, text := range d.Errors() {
			first, _, _ := strings.Cut(text, "\n")
			fmt.Fprintf(w, "  %s\n", first)
		}
	}
	_, err := fmt.Fprintln(w, "Secrets are not in it; names, labels and addresses of the cluster "+
		"are: check that the recipient may see them.")
	return err
}
