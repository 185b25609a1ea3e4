package config_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/config/rule"
)

var update = flag.Bool("update", false, "write docs/reference/configuration.md")

// TestReference keeps docs/reference/configuration.md equal to the types.
func TestReference(t *testing.T) {
	text, err := os.ReadFile("testdata/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	r := reference{
		t: t, docs: comments(t, "node.go", "sgpu.go", "health.go", "topology.go", "config.go", "../wellknown/names.go"), facts: comments(t, "model/facts.go"),
	}
	page := string(text)
	for mark, replacement := range map[string]string{
		"keys": r.keys(), "facts": r.factTable(), "length": strconv.Itoa(rule.MaxLength), "cost": strconv.Itoa(rule.MaxCost),
		"rules": strconv.Itoa(config.MaxRules),
	} {
		mark = "<!-- " + mark + " -->"
		if !strings.Contains(page, mark) {
			t.Errorf("no %s in the page", mark)
		}
		page = strings.Replace(page, mark, replacement, 1)
	}
	const file = "../../docs/reference/configuration.md"
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page, string(got)); diff != "" {
		t.Errorf("docs/reference/configuration.md is stale; run this test with -update\n%s", diff)
	}
}

// TestReferenceExamples reads every example of the page.
func TestReferenceExamples(t *testing.T) {
	text, err := os.ReadFile("testdata/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")[1:]
	if len(blocks) < 4 {
		t.Errorf("%d examples", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		var configMap struct {
			Data map[string]string `yaml:"data"`
		}
		if err := yaml.Unmarshal([]byte(block), &configMap); err != nil || len(configMap.Data) == 0 {
			t.Errorf("%v in\n%s", err, block)
		}
		data := map[string][]byte{}
		for key, value := range configMap.Data {
			data[key] = []byte(value)
		}
		if _, err := config.Parse(data, &rule.CEL{}); err != nil {
			t.Errorf("%v in\n%s", err, block)
		}
	}
}

// reference writes tables from types and their comments.
type reference struct {
	t           *testing.T
	docs, facts map[string]string
	out         bytes.Buffer
}

// keys writes one table for each section of a NodeConfig.
func (r *reference) keys() string {
	r.out.Reset()
	r.out.WriteString("Chosen by entries of `nodes-config`:\n\n")
	defaults := config.Builtin().Cluster
	r.table(reflect.TypeFor[config.Override](), reflect.Value{}, func(f reflect.StructField) bool {
		return f.Name != "NodeConfig"
	})
	r.out.WriteString("\nThe NodeConfig:\n\n")
	r.section("", reflect.ValueOf(defaults))
	return strings.TrimSuffix(r.out.String(), "\n")
}

// section writes the table of one struct and then those of its structs.
func (r *reference) section(path string, v reflect.Value) {
	r.table(v.Type(), v, func(reflect.StructField) bool { return true })
	for f, value := range v.Fields() {
		name := yamlName(f)
		at := strings.TrimPrefix(path+"."+name, ".")
		typ := f.Type
		if typ.Kind() == reflect.Slice {
			typ, at = typ.Elem(), at+"[]"
			value = reflect.New(typ).Elem()
			if f.Name == "Resources" {
				value.FieldByName("Sharers").SetInt(64)
				value.FieldByName("Count").SetString("distinct")
			}
		}
		if name == "-" || f.Anonymous || typ.Kind() != reflect.Struct {
			continue
		}
		fmt.Fprintf(&r.out, "\n### `%s`\n\n%s\n\n", at, r.typeText(typ))
		r.section(at, value)
	}
}

func (r *reference) table(t reflect.Type, v reflect.Value, want func(reflect.StructField) bool) {
	r.out.WriteString("| key | value | default | meaning |\n|---|---|---|---|\n")
	var rows func(t reflect.Type, v reflect.Value)
	rows = func(t reflect.Type, v reflect.Value) {
		for f := range t.Fields() {
			name := yamlName(f)
			if name == "-" || !want(f) {
				continue
			}
			var value reflect.Value
			if v.IsValid() {
				value = v.FieldByIndex(f.Index)
			}
			if f.Anonymous {
				rows(f.Type, value)
				continue
			}
			fmt.Fprintf(&r.out, "| `%s` | %s | %s | %s |\n", name, kindOf(f), show(f, value), r.text(f, t))
		}
	}
	rows(t, v)
}

// text is a field's comment.
func (r *reference) text(f reflect.StructField, t reflect.Type) string {
	doc, ok := r.docs[t.Name()+"."+f.Name]
	if !ok {
		r.t.Fatalf("%s.%s has no comment", t.Name(), f.Name)
	}
	return strings.ReplaceAll(predicate(strings.Join(strings.Fields(doc), " "), f.Name), "|", `\|`)
}

// predicate is a comment without its beginning, "Name is".
func predicate(doc, name string) string {
	doc = strings.TrimPrefix(doc, name+" ")
	doc = strings.TrimPrefix(strings.TrimPrefix(doc, "is "), "are ")
	return strings.ToUpper(doc[:1]) + doc[1:]
}

func (r *reference) typeText(t reflect.Type) string {
	doc := strings.Join(strings.Fields(r.docs[t.Name()]), " ")
	if doc == "" {
		r.t.Errorf("%s has no comment", t.Name())
	}
	return predicate(doc, t.Name())
}

// factTable writes the variables of label rules.
func (r *reference) factTable() string {
	r.out.Reset()
	r.out.WriteString("| name | type | meaning |\n|---|---|---|\n")
	var rows func(prefix string, t reflect.Type)
	rows = func(prefix string, t reflect.Type) {
		for f := range t.Fields() {
			name := f.Tag.Get("json")
			doc := strings.Join(strings.Fields(r.facts[t.Name()+"."+f.Name]), " ")
			fmt.Fprintf(&r.out, "| `%s%s` | %s | %s |\n", prefix, name, celKind(f.Type), predicate(doc, f.Name))
			if f.Type.Kind() == reflect.Struct {
				rows(prefix+name+".", f.Type)
			}
		}
	}
	rows("", reflect.TypeFor[model.Facts]())
	return strings.TrimSuffix(r.out.String(), "\n")
}

func celKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "list of texts"
	case reflect.Struct, reflect.Pointer:
		return "section"
	case reflect.String:
		return "text"
	default:
		return "number"
	}
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// kindOf describes what can be written.
func kindOf(f reflect.StructField) string {
	t, list := f.Type, ""
	if t.Kind() == reflect.Slice {
		t, list = t.Elem(), "list of "
	}
	words, isEnum := f.Tag.Lookup("enum")
	switch {
	case isEnum:
		var quoted []string
		for word := range strings.SplitSeq(words, ",") {
			if word != "" {
				quoted = append(quoted, "`"+word+"`")
			}
		}
		return list + strings.Join(quoted, ", ")
	case t.Kind() == reflect.Struct && list != "":
		return list + "sections"
	case t.Kind() == reflect.Struct:
		return "section"
	case t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Float64:
		return strings.Replace(list+"number, ", "of number", "of numbers", 1) + strings.Replace(f.Tag.Get("range"), "-", " to ", 1)
	case t.Kind() == reflect.Map:
		return "texts by key"
	case t == reflect.TypeFor[time.Duration]():
		low, high, _ := strings.Cut(f.Tag.Get("range"), "-")
		return "duration, `" + low + "` to `" + high + "`"
	case list != "":
		return list + "texts"
	}
	return "text"
}

func show(f reflect.StructField, v reflect.Value) string {
	switch {
	case f.Tag.Get("required") == "true":
		return "required"
	case !v.IsValid():
		return ""
	case v.Kind() == reflect.Struct:
		return "see below"
	case v.Kind() == reflect.Int && v.Int() == 0: // No range has it.
		return "none"
	case v.Kind() == reflect.Slice && v.Len() > 0:
		return "see below"
	case v.Kind() == reflect.Slice, v.Kind() == reflect.Map:
		return "none"
	case v.Kind() == reflect.String && v.Len() == 0:
		return "empty"
	}
	text := fmt.Sprint(v.Interface())
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return "`" + text + "`"
}

// comments reads the comments of types ("SGPU") and fields ("SGPU.GPUs").
func comments(t *testing.T, files ...string) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(file), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			decl, ok := n.(*ast.GenDecl)
			if !ok || decl.Tok != token.TYPE {
				return true
			}
			for _, spec := range decl.Specs {
				maps.Copy(docs, typeComments(decl, spec.(*ast.TypeSpec)))
			}
			return true
		})
	}
	return docs
}

func typeComments(decl *ast.GenDecl, spec *ast.TypeSpec) map[string]string {
	docs := map[string]string{spec.Name.Name: decl.Doc.Text()}
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return docs
	}
	for _, f := range fields.Fields.List {
		for _, name := range f.Names {
			docs[spec.Name.Name+"."+name.Name] = f.Doc.Text()
		}
	}
	return docs
}
