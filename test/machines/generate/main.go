// Command generate writes the machine files of test/machines.
//
// Each file is one shape of node, equal in form to what `heddle inspect -o
// json` prints. The shapes are written here as facts, from vendors' manuals
// and from topologies that owners of such machines published; identities
// (UUIDs, GUIDs) are made up and stable. The program decides nothing and is
// used by nothing: tests, demos and people read the files.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/heddle-dev/heddle/api/machine"
)

//go:generate go run . -dir ..

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", ".", "folder to write the machine files to")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("parse flags: %w", err)
	}
	for _, m := range machines() {
		b, err := machine.Encode(m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Node, err)
		}
		path := filepath.Join(*dir, m.Node+".json")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return fmt.Errorf("write machine file: %w", err)
		}
	}
	return nil
}

// machines are all shapes; a machine's node name is its file's name.
func machines() []*machine.Machine {
	builds := []*build{
		dgxH100(), dgxA100(),
		azureNDv4(), azureNDv5(), a100Pairs(),
		h200Scrambled(), h20(), h800(),
		gb200Tray(), b200OffNVLink(), nvswitchFunctions(),
		mixed(), noGPU(), softRDMA(),
		oneDeadPort(), ipoibDown(),
		amdMI210(), amdMI250X(), amdMI300X(), amdMI300XCPX(), amdMI308X(), amdPCIe(), twoMakers(),
		c500Box(), c550PCIe(),
	}
	all := make([]*machine.Machine, 0, len(builds))
	for _, b := range builds {
		all = append(all, b.done())
	}
	return all
}
