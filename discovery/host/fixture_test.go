package host

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// unpack puts an archive's directories, files and links under dir, without
// the part of their names before cut; entries without cut are left out.
func unpack(t *testing.T, r io.Reader, dir, cut string) {
	t.Helper()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		_, name, ok := strings.Cut(h.Name, cut)
		if !ok || !filepath.IsLocal(filepath.Clean(name)) {
			continue
		}
		path := filepath.Join(dir, name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(h.Linkname, path))
		case tar.TypeReg:
			b, readErr := io.ReadAll(io.LimitReader(archive, 1<<16))
			err = errors.Join(readErr, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(fixture(t, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func scan(t *testing.T, tree *sysfstest.Tree) *machine.Machine {
	t.Helper()
	m := at(tree, &gpus{}).Scan(t.Context())
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m
}

// The class directory of a real H100 host, copied without its links: eight NDR
// HCAs and a bond.
func TestFixtureH100Class(t *testing.T) {
	z, err := gzip.NewReader(open(t, "gpud-sys-class-infiniband-h100.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	tree := sysfstest.New(t)
	unpack(t, z, filepath.Join(tree.Sys(), "class/infiniband"), "sys-class-infiniband-h100.0/")
	m := scan(t, tree)
	for _, h := range m.HCAs {
		t.Logf("%s %s %s %+v", h.Name, h.Type, h.Role, h.Ports)
		if h.Virtual || h.PCI != "" {
			t.Errorf("%s: virtual %t, on %q", h.Name, h.Virtual, h.PCI)
		}
	}
	byRole := map[machine.Role]int{}
	for _, role := range rolesOf(m) {
		byRole[role]++
	}
	if byRole[machine.RoleFabric] != 8 || rolesOf(m)["mlx5_bond_0"] != machine.RoleStorage {
		t.Errorf("roles %v", rolesOf(m))
	}
}

// A whole /sys and /proc of a real machine with four NUMA nodes and an
// InfiniPath HCA, links intact.
func TestFixtureFourNUMANodes(t *testing.T) {
	tree := sysfstest.New(t)
	unpack(t, bzip2.NewReader(open(t, "hwloc-sysfs-40intel64-2g2n4c+pcilocality-qib0.tar.bz2")), tree.Root, "40intel64-2g2n4c+pci/")
	m := scan(t, tree)
	if len(m.HCAs) != 1 || len(m.CPU.NUMA) != 4 || m.CPU.Vendor != "intel" {
		t.Fatalf("%d HCAs, %d NUMA nodes, %+v", len(m.HCAs), len(m.CPU.NUMA), m.CPU)
	}
	h := m.HCAs[0]
	f := m.Function(h.PCI)
	if h.Name != "qib0" || h.PCI != "0000:43:00.0" || f == nil || f.NUMA == nil || *f.NUMA != 2 || f.Root == "" {
		t.Errorf("%+v on %+v", h, f)
	}
	t.Logf("%+v\n%+v\n%+v\nskipped %v", m.CPU, h, *f, m.Skipped)
}

// Omni-Path, a dual-port mlx4 and an mlx5, as the Prometheus project's testdata has
// them: directories, some without most files, one GUID without its newline.
func TestFixtureProcfs(t *testing.T) {
	tree := sysfstest.New(t)
	untar(t, tree, open(t, "procfs-fixtures-infiniband.ttar"))
	m := scan(t, tree)
	got := map[string][]string{}
	for _, h := range m.HCAs {
		for _, p := range h.Ports {
			got[h.Name] = append(got[h.Name], strconv.Itoa(p.Number)+" "+p.State+" "+p.Rate)
		}
	}
	want := map[string][]string{
		"hfi1_0": {"1 ACTIVE 100 Gb/sec (4X EDR)"},
		"mlx4_0": {"1 ACTIVE 40 Gb/sec (4X QDR)", "2 ACTIVE 40 Gb/sec (4X QDR)"},
		"mlx5_0": {"1 ACTIVE 25 Gb/sec (1X EDR)"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%v", diff, m.Skipped)
	}
}

// untar reads ttar, a text archive: Path, Lines, that number of lines, Mode.
func untar(t *testing.T, tree *sysfstest.Tree, r io.Reader) {
	t.Helper()
	lines := bufio.NewScanner(r)
	path := ""
	for lines.Scan() {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "Path: fixtures/"); ok {
			path = name
		}
		if name, ok := strings.CutPrefix(line, "Directory: fixtures/"); ok {
			tree.Dir(name)
		}
		count, ok := strings.CutPrefix(line, "Lines: ")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for range n {
			lines.Scan()
			text.WriteString(lines.Text() + "\n")
		}
		if body, cut := strings.CutSuffix(text.String(), "EOF\n"); cut {
			tree.Raw(path, strings.TrimSuffix(body, "NULLBYTE"))
			continue
		}
		tree.Raw(path, text.String())
	}
}
