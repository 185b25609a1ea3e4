// Package source gets the machine that a subcommand talks about: this host or
// a dump file. It reads, and decides nothing.
package source

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/heddle-dev/heddle/api/machine"
)

// Host is the value of --machine that means this host.
const Host = "host"

// Machine is where to get the machine from.
type Machine struct {
	from string
}

// Register adds the flags that say where.
func (s *Machine) Register(set *flag.FlagSet) {
	set.StringVar(&s.from, "machine", Host, "`host`, or a FILE that `heddle inspect -o json` wrote")
}

// Load reads the machine. A fault in a file names the file and the place.
func (s *Machine) Load(_ context.Context) (*machine.Machine, error) {
	return fromFile(s.from)
}

func fromFile(path string) (*machine.Machine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read machine: %w", err)
	}
	defer f.Close() //nolint:errcheck // Nothing was written.
	b, err := io.ReadAll(io.LimitReader(f, machine.MaxDump+1))
	if err != nil {
		return nil, fmt.Errorf("read machine: %w", err)
	}
	m, err := machine.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
