// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/hive"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Run runs a hive that [New] or [NewOperator] made until SIGINT or SIGTERM, or until a module
// ends it with an error. The flags are those of the hive, parsed. A second
// signal ends the process at once.
func Run(h *hive.Hive, flags *pflag.FlagSet, stderr io.Writer) error {
	prepared, err := prepare(flags, os.Environ(), stderr)
	if err != nil {
		return UsageError{err}
	}
	log := prepared.log
	if prepared.stateDir != "" {
		lock, err := AcquireLock(prepared.stateDir)
		if err != nil {
			return err
		}
		defer lock.Release()
		if lock.Unwritten != nil {
			log.Warn("The state directory cannot be written", "error", lock.Unwritten)
		}
	}
	klog.SetSlogLogger(log) // client-go's
	// The mode of the shell's socket is what the umask leaves: to write to it is to
	// write tables.
	unix.Umask(unix.Umask(0o077) | 0o022)

	stop := stopOnSignal(h, log)
	defer stop()
	return refusal(h.Run(log))
}

// UsageError is about the command line or the environment.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// UsageErrorf returns a [UsageError] of a formatted error.
func UsageErrorf(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// prepared is what has to be known before anything is constructed.
type prepared struct {
	log      *slog.Logger
	stateDir string // empty: none
}

func prepare(flags *pflag.FlagSet, environ []string, stderr io.Writer) (prepared, error) {
	unknown, notices, err := CompleteFlags(flags, environ)
	if err != nil {
		return prepared{}, err
	}
	value := func(name string) string { return flags.Lookup(name).Value.String() }
	log, err := newLogger(stderr, value("log-level"), value("log-format"))
	if err != nil {
		return prepared{}, err
	}
	stateDir := ""
	if flags.Lookup("state-dir") != nil { // the operator has none
		if stateDir = value("state-dir"); stateDir == "" {
			return prepared{}, errors.New(
				"--state-dir is empty: want a directory for what must outlive the agent")
		}
	}
	for _, name := range unknown {
		log.Warn("Environment variable is no flag", "variable", name)
	}
	for _, notice := range notices {
		log.Info("Using a directory of the user", "reason", notice)
	}
	return prepared{log: log, stateDir: stateDir}, nil
}

// CompleteFlags completes parsed flags from the environment, and replaces
// default locations that the process may not write with directories of the user.
// It returns the variables with the agent's prefix that are no flag, and in
// words which locations it replaced.
func CompleteFlags(flags *pflag.FlagSet, environ []string) (unknown, replaced []string, err error) {
	if unknown, err = applyEnvironment(flags, environ); err != nil {
		return nil, nil, err
	}
	replaced, err = locate(flags, writable)
	return unknown, replaced, err
}

// refusal removes hive's wording from the errors of modules that refuse their
// configuration, which are about what the user asked for.
func refusal(err error) error {
	var populate hive.ErrPopulate
	if errors.As(err, &populate) {
		_, cause, _ := strings.Cut(populate.Error(), ": ")
		return UsageErrorf("%s", cause)
	}
	return err
}

// together is within what two signals are one: timeout(1) sends its signal to
// the process and to its group.
const together = 100 * time.Millisecond

// stopOnSignal has a signal stop the hive, even before it has started: to
// process 1 of a container the kernel does not apply the default action. The
// returned function ends that.
func stopOnSignal(h *hive.Hive, log *slog.Logger) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		var first time.Time
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case sig := <-signals:
				if n > 0 && time.Since(first) > together {
					log.Error("Second signal, ending at once", "signal", sig)
					os.Exit(1)
				}
				if n == 0 {
					first = time.Now()
					h.Shutdown()
				}
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}
