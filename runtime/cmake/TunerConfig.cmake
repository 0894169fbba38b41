# find_package(Tuner): the target Tuner::runtime, compiled by the program's own compiler, and tuner_add_pack.
#
#   cmake -DTuner_DIR="$(tuner-client cmake-dir)" ...
#
#   find_package(Tuner REQUIRED)
#   tuner_add_pack(program PACK model.tunerpack)                 # beside the program, checked by every open
#   tuner_add_pack(program LOCK tuner.lock NAME model.tunerpack) # that pack of the lock, fetched by tuner-client
include_guard(GLOBAL)
get_filename_component(_tuner_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

if(NOT TARGET Tuner::runtime)
  enable_language(C)
  find_package(Threads REQUIRED)
  file(GLOB _tuner_sources CONFIGURE_DEPENDS "${_tuner_root}/src/*.c")
  add_library(tuner_runtime STATIC ${_tuner_sources})
  add_library(Tuner::runtime ALIAS tuner_runtime)
  target_include_directories(tuner_runtime PUBLIC "${_tuner_root}/include")
  target_link_libraries(tuner_runtime PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(tuner_runtime PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
                                                 POSITION_INDEPENDENT_CODE ON)
endif()

# The pack in the build folder under its name, and linked to the target: TUNER_PACK_<NAME> in it is the path, with what is
# not a letter or a digit as an underscore. A pack of a lock has the name that the lock gives it.
function(tuner_add_pack target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OFFLINE" "PACK;LOCK;NAME;CACHE" "")
  if(arg_UNPARSED_ARGUMENTS OR NOT TARGET ${target} OR (NOT arg_PACK AND NOT arg_LOCK) OR (arg_PACK AND arg_LOCK))
    message(FATAL_ERROR "tuner_add_pack(target PACK file | LOCK file [NAME name] [CACHE folder] [OFFLINE])")
  endif()
  if(arg_PACK)
    get_filename_component(source "${arg_PACK}" ABSOLUTE)
    if(IS_DIRECTORY "${source}")
      message(FATAL_ERROR "tuner_add_pack: ${source} is a folder, and no pack: tuner-client pack makes one")
    endif()
    get_source_file_property(is_made "${source}" GENERATED)  # by a custom command above
    if(NOT EXISTS "${source}" AND NOT is_made)
      message(FATAL_ERROR "tuner_add_pack: there is no ${source}: tuner-client pack makes one; a command of this folder that"
                          " makes it must precede tuner_add_pack")
    endif()
    if(NOT arg_NAME)
      get_filename_component(arg_NAME "${arg_PACK}" NAME)
    endif()
    set(command ${CMAKE_COMMAND} -E copy_if_different "${source}" "${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}")
  else()
    get_filename_component(source "${arg_LOCK}" ABSOLUTE)
    if(NOT arg_NAME)
      message(FATAL_ERROR "tuner_add_pack: NAME the pack of ${arg_LOCK}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    file(READ "${source}" lock)
    string(FIND "${lock}" "\"path\": \"${arg_NAME}\"" place)
    if(place EQUAL -1)
      message(FATAL_ERROR "tuner_add_pack: ${arg_LOCK} has no pack ${arg_NAME}; NAME is the \"path\" of one")
    endif()
    find_program(TUNER_CLIENT tuner-client)
    if(NOT TUNER_CLIENT)
      message(FATAL_ERROR "tuner_add_pack: tuner-client is not in PATH: install it, or give -DTUNER_CLIENT=...")
    endif()
    set(command "${TUNER_CLIENT}" fetch --lock "${source}" --into "${CMAKE_CURRENT_BINARY_DIR}")
    if(arg_CACHE)
      get_filename_component(cache "${arg_CACHE}" ABSOLUTE)
      list(APPEND command --cache "${cache}")
    endif()
    if(arg_OFFLINE)
      list(APPEND command --offline)
    endif()
  endif()
  set(pack "${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}")
  # What is brought without a change keeps its time stamp, and would be brought again by every build.
  add_custom_command(OUTPUT "${pack}" COMMAND ${command} COMMAND ${CMAKE_COMMAND} -E touch "${pack}"
                     DEPENDS "${source}" VERBATIM COMMENT "Bringing ${arg_NAME}")
  string(MAKE_C_IDENTIFIER "${arg_NAME}" id)
  add_custom_target(${target}_${id} DEPENDS "${pack}")
  add_dependencies(${target} ${target}_${id})
  target_link_libraries(${target} PRIVATE Tuner::runtime)
  string(TOUPPER "${id}" upper)
  target_compile_definitions(${target} PRIVATE "TUNER_PACK_${upper}=\"${pack}\"")
endfunction()

set(Tuner_FOUND TRUE)
