// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const (
	insideVariable    = "SLUICE_E2E_INSIDE"         // set in the namespaces
	binaryVariable    = "SLUICE_E2E_BINARY"         // path of sluice
	privilegeVariable = "SLUICE_REQUIRE_PRIVILEGED" // 1: a test that cannot run fails
)

// unprivileged is why the namespaces could not be made.
var unprivileged error

// TestMain runs the tests in namespaces of their own, as far as it is allowed to.
func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) == "" {
		code, err := runInside()
		if err == nil {
			os.Exit(code)
		}
		unprivileged = err
		os.Exit(m.Run())
	}
	if err := setUpNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the network of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// runInside runs this binary again, in new network and mount namespaces.
func runInside() (code int, err error) {
	runtime.LockOSThread() // Pdeathsig is about the thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 1, nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

func setUpNamespaces() error {
	// Mounts of the tests must not reach the machine's namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return setUpNetwork()
}

// requirePrivileges skips the test where it is not allowed to make namespaces
// and maps, or fails it if that must not be.
func requirePrivileges(t *testing.T) {
	t.Helper()
	switch {
	case unprivileged == nil:
	case os.Getenv(privilegeVariable) == "1":
		t.Fatalf("needs root: %v", unprivileged)
	default:
		t.Skipf("needs root: %v", unprivileged)
	}
}
