package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
)

// schemas returns the OpenAPI schemas of an API server.
type schemas struct{ discovery.DiscoveryInterface }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

// The API server checks the types of policies and writes its warnings into their status. This module has its code.
func TestPoliciesHaveNoTypeWarnings(t *testing.T) {
	checker := validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: schemas{}},
		RestMapper:     testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme),
	}
	wrong := admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"events"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "object.spec.x"}},
	}}
	if w := checker.Check(&wrong); len(w) != 1 || !strings.Contains(w[0].Warning, "undefined field 'spec'") {
		t.Errorf("an Event with a spec: %v", w)
	}
	manifest, err := os.Open("../../deploy/kustomize/base/heddle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer manifest.Close()
	checked := 0
	for objects := yaml.NewYAMLOrJSONDecoder(manifest, 4096); ; {
		var policy admissionv1.ValidatingAdmissionPolicy
		if err := objects.Decode(&policy); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if policy.Kind != "ValidatingAdmissionPolicy" {
			continue
		}
		checked++
		for _, w := range checker.Check(&policy) {
			t.Errorf("%s: %s: %s", policy.Name, w.FieldRef, w.Warning)
		}
	}
	if checked < 10 {
		t.Errorf("only %d policies", checked)
	}
}
