// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/cmd/suggest"
)

// notFlags are variables with the agent's prefix that are not flags of it.
var notFlags = []string{
	"SLUICE_SERVER",             // of sluice get and others
	"SLUICE_REQUIRE_PRIVILEGED", // of the tests
}

// applyEnvironment sets the flags that the environment sets and the command
// line does not, so that both are checked alike. It returns the variables with
// the agent's prefix that are no flag.
func applyEnvironment(flags *pflag.FlagSet, environ []string) (unknown []string, err error) {
	known := map[string]*pflag.Flag{}
	flags.VisitAll(func(f *pflag.Flag) { known[EnvironmentName(f.Name)] = f })
	var errs error
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		flag := known[name]
		switch {
		case !strings.HasPrefix(name, envPrefix) || slices.Contains(notFlags, name):
		case flag == nil:
			unknown = append(unknown, name)
		case value == "" || flag.Changed:
		default:
			if err := flags.Set(flag.Name, value); err != nil {
				errs = errors.Join(errs, fmt.Errorf("environment variable %s: %w", name, err))
			}
		}
	}
	slices.Sort(unknown)
	return unknown, errs
}

// EnvironmentName returns the variable that sets a flag.
func EnvironmentName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// FlagError adds to what is wrong with the command line what could have been meant.
func FlagError(command string, flags *pflag.FlagSet, err error) error {
	hint := fmt.Sprintf("see %s --help", command)
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if near := suggest.Nearest(unknown.GetSpecifiedName(), names(flags)); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %s? Else %s", list(near), hint)
		} else {
			hint = fmt.Sprintf("the flags are %s: %s", list(names(flags)), hint)
		}
	}
	return fmt.Errorf("%w\n%s", err, hint)
}

// names returns all flags that a user is to know.
func names(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

func list(flags []string) string { return "--" + strings.Join(flags, ", --") }
