// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/cmd/api"
)

// shellFlag is the flag of hive's shell server.
const shellFlag = "shell-sock-path"

// ShellSocket returns the path of the shell's socket beside the API's.
func ShellSocket(apiSocket string) string {
	if apiSocket == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(apiSocket), "shell.sock")
}

// Sockets returns where the API's socket is when --socket does not say: for the
// node's agent, and for one that a user runs.
func Sockets() []string {
	sockets := []string{api.DefaultConfig.Socket}
	if dir, err := userRuntimeDir(); err == nil {
		sockets = append(sockets, filepath.Join(dir, filepath.Base(api.DefaultConfig.Socket)))
	}
	return sockets
}

// UserStateDir returns the state directory of an agent that a user runs.
func UserStateDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the agent's state: %w: --state-dir sets it", err)
	}
	return filepath.Join(dir, "sluice"), nil
}

func userRuntimeDir() (string, error) {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "sluice"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the agent's socket: %w: --socket sets it", err)
	}
	return filepath.Join(dir, "sluice"), nil
}

// locate replaces the default locations that the process may not write with
// directories of the user, and returns what it did. Locations that were asked
// for are left alone.
func locate(flags *pflag.FlagSet, writable func(dir string) bool) (notices []string, err error) {
	replace := func(name, dir string, instead func() (string, error)) error {
		flag := flags.Lookup(name)
		if flag == nil || flag.Changed || writable(dir) {
			return nil
		}
		path, err := instead()
		if err != nil {
			return err
		}
		notices = append(notices, fmt.Sprintf("%s cannot be written: --%s is %s", dir, name, path))
		return flags.Set(name, path)
	}
	if err := replace("state-dir", DefaultConfig.StateDir, UserStateDir); err != nil {
		return nil, err
	}
	if err := replace("socket", filepath.Dir(api.DefaultConfig.Socket), func() (string, error) {
		dir, err := userRuntimeDir()
		return filepath.Join(dir, filepath.Base(api.DefaultConfig.Socket)), err
	}); err != nil {
		return nil, err
	}
	if shell, socket := flags.Lookup(shellFlag), flags.Lookup("socket"); shell != nil && socket != nil && !shell.Changed {
		if err := flags.Set(shellFlag, ShellSocket(socket.Value.String())); err != nil {
			return nil, err
		}
	}
	return notices, nil
}

// writable reports whether files can be made in a directory, which is created
// if it does not exist.
func writable(dir string) bool {
	return os.MkdirAll(dir, 0o755) == nil && unix.Access(dir, unix.W_OK|unix.X_OK) == nil
}
