package chart

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/docs"
)

// The table of docs/reference/values.md repeats values.yaml.
func TestValuesTable(t *testing.T) {
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values yaml.Node
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| key | default | meaning |\n|---|---|---|\n")
	writeRows(t, &table, values.Content[0], "")
	docs.Section(t, root, "docs/reference/values.md", "values", table.String(), *update)
}

// writeRows writes a row for each described key. A mapping without a
// description is a group, one with a description is a value.
func writeRows(t *testing.T, table *strings.Builder, mapping *yaml.Node, at string) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		comment := key.HeadComment
		if _, own, ok := strings.Cut(comment, "\n\n"); ok {
			comment = own // what stands before the empty line is about the file
		}
		comment = strings.Join(strings.Fields(strings.ReplaceAll("\n"+comment, "\n#", "\n")), " ")
		if comment == "" {
			if value.Kind != yaml.MappingNode {
				t.Errorf("values.yaml:%d: %s has no description", key.Line, at+key.Value)
			}
			writeRows(t, table, value, at+key.Value+".")
			continue
		}
		if at != "" && slices.Contains([]string{"nodeSelector", "affinity", "tolerations", "resources"}, key.Value) {
			continue // Every component has these.
		}
		table.WriteString("| `" + at + key.Value + "` | `" + flow(t, value) + "` | " +
			strings.ReplaceAll(comment, "|", `\|`) + " |\n")
	}
}

// flow is a value on one line.
func flow(t *testing.T, value *yaml.Node) string {
	t.Helper()
	if value.Kind == yaml.ScalarNode {
		return cmp.Or(value.Value, `""`)
	}
	var inline func(n *yaml.Node) string
	inline = func(n *yaml.Node) string {
		var parts []string
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i < len(n.Content); i += 2 {
				parts = append(parts, n.Content[i].Value+": "+inline(n.Content[i+1]))
			}
			return "{" + strings.Join(parts, ", ") + "}"
		case yaml.SequenceNode:
			for _, c := range n.Content {
				parts = append(parts, inline(c))
			}
			return "[" + strings.Join(parts, ", ") + "]"
		default:
			return n.Value
		}
	}
	return inline(value)
}

// commands are the lines of sh blocks, continuation lines joined.
func commands(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.SplitSeq(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				found = append(found, line)
			}
		}
	}
	return found
}

// Commands in the documentation work: values exist, objects and files are
// there, flags are known.
func TestDocumentedCommands(t *testing.T) {
	objects := render(t, "--set", "gpuDevice.enabled=true", "--set", "topoDiscovery.enabled=true")
	pages, err := filepath.Glob(root + "/docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for _, file := range pages {
		page := strings.TrimPrefix(file, root+"/")
		found := commands(t, page)
		all += len(found)
		for _, line := range found {
			t.Run(page+": "+line, func(t *testing.T) {
				words := strings.Fields(line)
				if _, command, ok := strings.Cut(words[0], "=$("); ok {
					words[0] = command // Its output is kept in a variable.
				}
				for strings.Contains(words[0], "=") {
					words = words[1:] // The environment.
				}
				switch words[0] {
				case "helm":
					checkHelm(t, words[1:])
				case "kubectl":
					checkKubectl(t, objects, words[1:])
				case "heddle-node":
					known := flagNames(t, "heddle-"+words[1])
					for _, w := range words[2:] {
						if name, ok := strings.CutPrefix(w, "--"); ok && !known[name] {
							t.Errorf("no flag %s", w)
						}
					}
				case "docker", "sed", "sudo", "go", "make", "heddle": // The last two: test/docs, cmd/heddle.
				case "curl":
					checkCurl(t, objects, words)
				case "nvidia-smi", "mx-smi", "grep": // The makers' own, and the system's.
				case "./heddle-images.run": // What `make bundle` writes; tools/release tests it.
					if !slices.Contains([]string{"push", "nerdctl", "unpack"}, words[1]) {
						t.Errorf("the bundle has no command %s", words[1])
					}
				case "hardware/run", "hardware/measure": // What `make hardware` writes, for a machine with GPUs.
				default:
					t.Errorf("no test knows %s", words[0])
				}
				checkFiles(t, words)
			})
		}
	}
	if all < 100 {
		t.Errorf("%d commands in all pages", all)
	}
}

// checkCurl compares the port with topo-master's, the only one that the pages ask so.
func checkCurl(t *testing.T, objects rendered, words []string) {
	t.Helper()
	service := get[*corev1.Service](t, objects, "Service/heddle-topo-master")
	address := strings.TrimPrefix(words[len(words)-1], "http://")
	if want := fmt.Sprintf(":%d/node_group", service.Spec.Ports[0].Port); !strings.HasSuffix(address, want) {
		t.Errorf("%s does not end in %s", address, want)
	}
}

// checkHelm renders what the command installs.
func checkHelm(t *testing.T, words []string) {
	t.Helper()
	if words[0] != "install" && words[0] != "upgrade" || !strings.Contains(words[2], "heddle") { // Volcano's chart.
		return
	}
	if !slices.Contains(words, "./heddle-0.1.0.tgz") && !slices.Contains(words, "./dist/heddle-0.1.0.tgz") {
		t.Error("the command names another chart file than make chart makes")
	}
	args := []string{
		"template", generated, chartDir, "-n", namespace,
		"--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
	}
	for i, w := range words {
		switch w {
		case "--set", "--set-string", "--set-json":
			args = append(args, w, strings.Trim(words[i+1], "'"))
		case "-f":
			if strings.Contains(words[i+1], "/") { // Others are files that the page has the lines of.
				args = append(args, w, filepath.Join(root, words[i+1]))
			}
		}
	}
	if _, err := helm(t, args...); err != nil {
		t.Error(err)
	}
}

// checkKubectl looks for heddle's objects and for labels that it writes.
func checkKubectl(t *testing.T, objects rendered, words []string) {
	t.Helper()
	labels := wellknown.DefaultDomains().NodeLabels()
	text, err := os.ReadFile(root + "/deploy/examples/sgpu-plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	example := decode(t, string(text))
	for i, w := range words {
		for prefix, kind := range map[string]string{"ds/": "DaemonSet/", "deploy/": "Deployment/", "svc/": "Service/"} {
			if name, ok := strings.CutPrefix(w, prefix); ok && words[i-1] != "-f" && words[i-1] != "-k" && objects[kind+name] == nil && example[kind+name] == nil {
				t.Errorf("the chart has no %s%s", kind, name)
			}
		}
		if w == "-L" {
			for key := range strings.SplitSeq(words[i+1], ",") {
				if !slices.Contains(labels, key) && !strings.HasPrefix(key, wellknown.TopologyPrefix) {
					t.Errorf("no daemon writes label %s", key)
				}
			}
		}
	}
}

func checkFiles(t *testing.T, words []string) {
	t.Helper()
	for _, w := range words {
		w = strings.TrimPrefix(w, "--from-file=")
		if strings.HasPrefix(w, "deploy/") && strings.Count(w, "/") > 1 || strings.HasPrefix(w, "test/") {
			if _, err := os.Stat(filepath.Join(root, w)); err != nil {
				t.Error(err)
			}
		}
	}
}

// The chart's version is in file names of the documentation.
func TestVersion(t *testing.T) {
	text, err := helm(t, "show", "chart", chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"version: 0.1.0", "appVersion: 0.1.0"} {
		if !slices.Contains(lines(text), want) {
			t.Errorf("Chart.yaml has no %q: change docs/get-started/install.md, docs/operate/upgrade.md and this test with it",
				want)
		}
	}
}
