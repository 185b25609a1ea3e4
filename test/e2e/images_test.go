//go:build e2e && linux

package e2e

import (
	"context"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// makeImages runs `release images` and returns its line of an image: name, digest,
// architectures.
func makeImages(t *testing.T, b *bed, out, arches, name string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", "images", "-root", b.installer.Root, "-out", out,
		"-arch", arches, "-version", "oci", "-registry", "localhost/layout", name)
	cmd.Dir = filepath.Join(b.installer.Root, "tools/release")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	line, err := cmd.Output()
	if strings.Contains(complaint.String(), "the mirror has no more") {
		t.Skip("the pinned packages of the base are not on this mirror any more: release lock")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, complaint.String())
	}
	return string(line)
}

// TestImages: the images of `make images` run in the real containerd, are the
// same when they are built again, and hold what they declare.
func TestImages(t *testing.T) {
	b := shared
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("the images' base is unpacked with dpkg-deb: ", err)
	}
	dir := t.TempDir()
	first := makeImages(t, b, filepath.Join(dir, "a"), "amd64,arm64", daemon)
	again := makeImages(t, b, filepath.Join(dir, "b"), "amd64,arm64", daemon)
	if first != again {
		t.Errorf("two builds differ:\n%s%s", first, again)
	}
	inspectLayout(t, filepath.Join(dir, "a", daemon))
	for _, arch := range []string{"amd64", "arm64"} {
		var bill struct {
			Packages []struct{ Name string }
		}
		decodeFile(t, filepath.Join(dir, "a", daemon+"-"+arch+".spdx.json"), &bill)
		for _, want := range []string{"libc6", "ca-certificates", "github.com/NVIDIA/go-nvml", daemon} {
			if !slices.ContainsFunc(bill.Packages, func(p struct{ Name string }) bool { return p.Name == want }) {
				t.Errorf("the bill of materials for %s lacks %s", arch, want)
			}
		}
	}

	archive := filepath.Join(dir, "image.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-cf", archive, "-C", filepath.Join(dir, "a", daemon), ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	if err := b.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	out, err := b.installer.Helm(t.Context(), b.Cluster, "install", "layout", "deploy/helm/heddle", "--wait", "--timeout", "2m",
		"--namespace", "heddle-layout", "--create-namespace", "--set", "registry=localhost/layout,tag=oci,gpuDevice.deploy=false",
		"--set-json", `gpuLabel.affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"type","operator":"NotIn","values":["kwok"]}]}]}}}`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		out, err := b.installer.Helm(ctx, b.Cluster, "uninstall", "layout", "-n", "heddle-layout", "--wait", "--no-hooks")
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	got := b.kubectl(t, "-n", "heddle-layout", "get", "pods", "-o",
		"jsonpath={range .items[*]}{.status.containerStatuses[0].image} {.status.containerStatuses[0].ready} {end}")
	if want := "localhost/layout/" + daemon + ":oci true "; got != want {
		t.Errorf("pods: %q, want %q", got, want)
	}
}

// TestImageOfTheDevicePlugin: it has the hook that the plugin puts on the node.
func TestImageOfTheDevicePlugin(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("the images' base is unpacked with dpkg-deb: ", err)
	}
	const name, hook = "heddle-device-plugin", "heddle-cdi-hook"
	dir := t.TempDir()
	makeImages(t, shared, dir, "amd64", name)
	path := func(b blob) string {
		return filepath.Join(dir, name, "blobs", strings.Replace(b.Digest, ":", "/", 1))
	}
	var top, index, image blobs
	decodeFile(t, filepath.Join(dir, name, "index.json"), &top)
	decodeFile(t, path(top.Manifests[0]), &index)
	decodeFile(t, path(index.Manifests[0]), &image)
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", path(image.Layers[1]), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	// The runtime of a node has neither this image's libc nor its loader.
	program, err := elf.Open(filepath.Join(dir, "usr/local/bin", hook))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if needs, err := program.ImportedLibraries(); err != nil || len(needs) > 0 {
		t.Errorf("%s needs %v, %v", hook, needs, err)
	}
	bill, err := os.ReadFile(filepath.Join(dir, name+"-amd64.spdx.json"))
	if err != nil || !strings.Contains(string(bill), "github.com/cyphar/filepath-securejoin") {
		t.Errorf("the bill of materials lacks the hook's module: %v", err)
	}
}

// The parts of OCI's index, manifest and configuration that are looked at.
type (
	blob struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	blobs struct {
		Manifests, Layers []blob
		Config            blob
	}
	imageConfig struct {
		Architecture string
		Config       struct {
			User   string
			Labels map[string]string
		}
	}
)

// inspectLayout checks the index of a layout and the programs' machine.
func inspectLayout(t *testing.T, dir string) {
	t.Helper()
	path := func(b blob) string { return filepath.Join(dir, "blobs", strings.Replace(b.Digest, ":", "/", 1)) }
	var top, index blobs
	decodeFile(t, filepath.Join(dir, "index.json"), &top)
	decodeFile(t, path(top.Manifests[0]), &index)
	var arches []string
	for _, d := range index.Manifests {
		arches = append(arches, d.Platform.Architecture)
		var m blobs
		var c imageConfig
		decodeFile(t, path(d), &m)
		decodeFile(t, path(m.Config), &c)
		if c.Config.User != "65532:65532" || c.Config.Labels["org.opencontainers.image.title"] != daemon || c.Architecture != d.Platform.Architecture {
			t.Errorf("configuration of %s: %+v", d.Platform.Architecture, c.Config)
		}
		if d.Platform.Architecture != runtime.GOARCH {
			runForeign(t, d.Platform.Architecture, path(m.Layers[0]), path(m.Layers[1]))
		}
	}
	if !slices.Equal(arches, []string{"amd64", "arm64"}) {
		t.Errorf("architectures %v", arches)
	}
}

// runForeign runs the program of another architecture, where QEMU is installed.
func runForeign(t *testing.T, arch string, layers ...string) {
	t.Helper()
	qemu, err := exec.LookPath("qemu-" + map[string]string{"arm64": "aarch64", "amd64": "x86_64"}[arch] + "-static")
	if err != nil {
		t.Logf("the image for %s was built and not run: %v", arch, err)
		return
	}
	root := t.TempDir()
	for _, l := range layers {
		if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", l, "-C", root).CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), qemu, "-L", root, filepath.Join(root, "usr/local/bin", daemon), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "oci") {
		t.Errorf("%s under QEMU: %v: %s", daemon, err, out)
	}
}

func decodeFile(t *testing.T, file string, to any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
