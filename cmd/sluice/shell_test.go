// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/testdata/await"
)

// openTerminal returns both ends of a terminal: what a person has, and what a program has.
func openTerminal(t *testing.T) (person, program *os.File) {
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	// A new terminal has no columns, and line editors break the line at each character.
	size := &unix.Winsize{Row: 24, Col: 120}
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size))
	return person, program
}

// awaitShell waits for the shell's socket, which the agent opens after it has started.
func awaitShell(t *testing.T, p *process) {
	path := agent.ShellSocket(p.socket())
	await.True(t, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// The shell answers commands that are typed at its prompt.
func TestShellPrompt(t *testing.T) {
	awaitShell(t, startAgent(t))
	self, err := os.Executable()
	require.NoError(t, err)
	person, program := openTerminal(t)
	cmd := exec.Command(self, "shell")
	cmd.Env = append(os.Environ(), asMain+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	program.Close()
	t.Cleanup(func() { cmd.Process.Kill() })

	var screen buffer
	read := make(chan struct{})
	go func() {
		io.Copy(&screen, person) // fails when the program has ended
		close(read)
	}()
	seen := func(text string) func() bool {
		return func() bool { return strings.Contains(screen.String(), text) }
	}
	await.True(t, seen("sluice> "), "%v", &screen)
	_, err = io.WriteString(person, "map/dump none\r")
	require.NoError(t, err)
	await.True(t, seen(`no map "none"`), "%v", &screen)
	_, err = io.WriteString(person, "health\r")
	require.NoError(t, err)
	await.True(t, seen("api: level=OK"), "%v", &screen)
	_, err = io.WriteString(person, "exit\r")
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	<-read
	require.NotContains(t, screen.String(), "unknown command")
}

// An agent that is no test has no command that injects faults or runs programs.
func TestShellCommands(t *testing.T) {
	t.Setenv(withoutFaults, "1")
	awaitShell(t, startAgent(t))
	help := sluice(t, "shell", "help")
	require.Equal(t, exitOK, help.code, help.stderr)
	for _, command := range []string{"map/dump", "map/audit", "health", "db/show", "help"} {
		require.Contains(t, help.stdout, command)
	}
	for _, command := range []string{
		"exec", "map/fail", "map/size", "map/log", "map/reset-log", "map/corrupt", "events/inject",
		"k8s/lead", "netlink/set",
	} {
		r := sluice(t, "shell", command, "true")
		require.Equal(t, exitError, r.code, command)
		require.Contains(t, r.stdout+r.stderr, "unknown command", command)
	}
}
