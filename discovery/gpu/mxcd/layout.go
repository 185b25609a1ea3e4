package mxcd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/discovery/sysfs"
)

const (
	layoutDir = "class/mxcd/mxcd/layout"
	// maxNodes bounds the nodes that are read.
	maxNodes = 512
)

// readLayout reads the compute driver's layout, and returns by its order, which is
// that of the GPUs, the properties of each GPU's node. Nodes of processors come first
// (num_cpu_nodes of them), and then one of each GPU. A layout that is absent has none.
func readLayout(fs sysfs.FS) ([]map[string]uint64, error) {
	names, err := fs.List(layoutDir + "/nodes")
	if err != nil || len(names) == 0 {
		return nil, err
	}
	if len(names) > maxNodes {
		return nil, fmt.Errorf("%s has more than %d nodes", fs.Path(layoutDir), maxNodes)
	}
	system, err := readProperties(fs, layoutDir+"/properties")
	if err != nil {
		return nil, err
	}
	processors, ok := system["num_cpu_nodes"]
	if !ok {
		return nil, fmt.Errorf("%s/properties has no num_cpu_nodes, it is cut off", fs.Path(layoutDir))
	}
	var numbers []int
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s/nodes has the invalid number %.40q", fs.Path(layoutDir), name)
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var nodes []map[string]uint64
	var errs []error
	for _, n := range numbers {
		if uint64(n) < processors { //nolint:gosec // It is not negative.
			continue
		}
		p, err := readProperties(fs, fmt.Sprintf("%s/nodes/%d/properties", layoutDir, n))
		if err != nil {
			errs = append(errs, err)
		}
		nodes = append(nodes, p)
	}
	return nodes, errors.Join(errs...)
}

// readProperties reads a file of lines that have a name and a number each; other
// lines are of no interest. A file that has none is cut off.
func readProperties(fs sysfs.FS, name string) (map[string]uint64, error) {
	text, err := fs.Read(name)
	if err != nil {
		return nil, err
	}
	p := parseProperties(text)
	if len(p) == 0 {
		return nil, fmt.Errorf("%s has no property, it is cut off", fs.Path(name))
	}
	return p, nil
}

func parseProperties(text string) map[string]uint64 {
	p := map[string]uint64{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 {
			if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				p[fields[0]] = n
			}
		}
	}
	return p
}
